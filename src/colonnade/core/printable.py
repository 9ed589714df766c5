"""Texts that another side has chosen, as a terminal and a log may show them.

A text from elsewhere may hold escape sequences that a terminal obeys, line ends that forge lines
of a log, and direction marks that make a line read as another. Nothing of that is shown: every
character that is not printable is written as its escape, on one line, and a long text is cut.
"""

from __future__ import annotations

__all__ = ["printable"]

_LONGEST = 4000


def printable(text: str, *, most: int = _LONGEST, keep: str = "") -> str:
    """The text as it may be shown: on one line, every other character as its escape.

    Args:
        text: Any text.
        most: How many characters to show; the rest is counted only.
        keep: Characters that may stay although they are not printable, such as own line ends.

    Returns:
        The text itself if it is printable and short.
    """
    if len(text) > most:
        text = f"{text[:most]}... ({len(text) - most} characters more)"
    if text.isprintable():
        return text
    return "".join(
        item if item.isprintable() or item in keep else _escaped(ord(item)) for item in text
    )


def _escaped(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
