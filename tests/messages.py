"""What a message says: the facts in it, whatever its wording and their order.

``pytest.raises(NoAnswer, match=says("'slow'", "'embed'", 3, 50))`` wants both names and both
numbers in the message. The sentence around them may change.
"""

from __future__ import annotations

import re

__all__ = ["says"]


def says(*facts: object) -> str:
    """A pattern for ``match=`` that finds every fact, each as a word or number by itself.

    Names that could be ordinary words are given in the quotes that messages put around them.
    """
    return r"(?s)\A" + "".join(f"(?=.*{_alone(str(fact))})" for fact in facts)


def _alone(fact: str) -> str:
    """The text, not as a part of a longer word or number: 3 is neither in 30 nor in 0.3 or 3.5."""
    before = r"(?<![\w.\-])" if fact[0].isdigit() else r"(?<!\w)" if _is_in_words(fact[0]) else ""
    after = r"(?!\w|\.\d)" if fact[-1].isdigit() else r"(?!\w)" if _is_in_words(fact[-1]) else ""
    return before + re.escape(fact) + after


def _is_in_words(character: str) -> bool:
    return character.isalnum() or character == "_"
