"""Rules that normalise ids, so that two parties write the same person the same way.

A key has one part or several (name and birth date). Each part has a list of rules, applied in the
order in which they stand:

========  ==========================================================================
trim      no space at the ends, one space for any run of spaces inside
nfkc      Unicode's compatibility form: full-width digits, ligatures, composed accents
case      no difference between upper and lower case (Unicode case folding)
digits    decimal digits only, as ASCII
email     an e-mail address: trimmed, folded, no ``mailto:``
phone     a telephone number as ``+`` and digits; ``country`` stands for a leading 0
date      a date as 1990-05-31, from 1990-05-31, 1990/5/31, 19900531 or 31.5.1990
========  ==========================================================================
"""

from __future__ import annotations

import datetime
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from colonnade.core.errors import ConfigError

__all__ = ["DEFAULT_KEY", "KeyPart", "Rule"]

Rule = Literal["trim", "nfkc", "case", "digits", "email", "phone", "date"]


@dataclass(frozen=True, kw_only=True)
class KeyPart:
    """One part of a sample's key: the rules that all parties apply to it.

    ``country`` is the calling code, such as 49, that stands for a telephone number's leading 0.
    """

    rules: tuple[Rule, ...] = ("nfkc", "trim")
    country: str | None = None

    def __post_init__(self) -> None:
        if self.country is not None and not re.fullmatch(r"[1-9][0-9]{0,2}", self.country):
            raise ConfigError(
                f"country: a calling code of 1 to 3 digits, such as 49, got '{self.country}'"
            )
        if self.country is not None and "phone" not in self.rules:
            raise ConfigError("country: only the rule 'phone' uses it; add the rule or leave it")
        twice = sorted({rule for rule in self.rules if self.rules.count(rule) > 1})
        if twice:
            raise ConfigError(f"rules: {twice} stand more than once")

    def apply(self, text: str) -> str:
        """The text under the rules; empty if it does not fit a rule."""
        for rule in self.rules:
            text = _RULES[rule](text, self.country)
        return text


DEFAULT_KEY = (KeyPart(),)


def _trim(text: str, _: str | None) -> str:
    return " ".join(text.split())


def _nfkc(text: str, _: str | None) -> str:
    return unicodedata.normalize("NFKC", text)


def _case(text: str, _: str | None) -> str:
    # Folding can undo composition, so compose again, as Unicode's caseless matching does.
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())


def _digits(text: str, _: str | None) -> str:
    return "".join(str(unicodedata.decimal(sign)) for sign in text if sign.isdecimal())


def _email(text: str, country: str | None) -> str:
    text = _case(_nfkc("".join(text.split()), country), country).removeprefix("mailto:")
    name, _, domain = text.rpartition("@")
    domain = domain.rstrip(".")
    return f"{name}@{domain}" if name and "." in domain else ""


def _phone(text: str, country: str | None) -> str:
    text = _nfkc(text, country).strip().casefold().removeprefix("tel:").strip()
    # The trunk zero that some write in brackets after the country's code is not dialled.
    is_international = text.startswith(("+", "00"))
    digits = _digits(text.replace("(0)", "") if is_international else text, country)
    if text.startswith("+"):
        return f"+{digits}" if digits else ""
    if text.startswith("00"):
        return f"+{digits[2:]}" if digits[2:] else ""
    if not digits or country is None:
        return digits
    return f"+{country}{digits.removeprefix('0')}"


_DATES = (
    re.compile(r"(?P<y>\d{4})-(?P<m>\d{1,2})-(?P<d>\d{1,2})"),
    re.compile(r"(?P<y>\d{4})/(?P<m>\d{1,2})/(?P<d>\d{1,2})"),
    re.compile(r"(?P<y>\d{4})(?P<m>\d{2})(?P<d>\d{2})"),
    re.compile(r"(?P<d>\d{1,2})\.\s?(?P<m>\d{1,2})\.\s?(?P<y>\d{4})"),
)


def _date(text: str, country: str | None) -> str:
    text = _nfkc(text, country).strip()
    for form in _DATES:
        found = form.fullmatch(text)
        if found is not None:
            try:
                return datetime.date(*(int(found[part]) for part in "ymd")).isoformat()
            except ValueError:
                return ""
    return ""


_RULES: Mapping[str, Callable[[str, str | None], str]] = {
    "trim": _trim,
    "nfkc": _nfkc,
    "case": _case,
    "digits": _digits,
    "email": _email,
    "phone": _phone,
    "date": _date,
}
