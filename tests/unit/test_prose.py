"""Pages name the actor first, and a sentence is read once.

Few sentences open with a clause, have a pronoun for an actor, or more than 25 words.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
# There were 127, 118 and 335 over all pages. A quotation may need a pronoun; a list of names is a
# long sentence.
MOST_OPENINGS = 2
MOST_PRONOUNS = 4
MOST_LONG = 70
MOST_WORDS = 25

# "What crosses is packed", "Whoever has the key can": a reader has to wait for the actor.
START = r"(?:\A|[.!:] |[.!:]\n|\n\n|\n(?=[-*] |\d+\. ))(?:(?:[-*]|\d+\.) )?(?:\*\*)?"
OPENING = re.compile(rf"{START}((?:What|Who)(?:ever)?\b)")
PRONOUN = re.compile(r"(?<![-\w\"`])(?:everybody|nobody|everyone)\b(?!-)", re.IGNORECASE)


def prose(page: Path) -> str:
    """A page's sentences: no code, no headings, no tables, no generated parts."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
    text = re.sub(r"<!-- (\w+).*?<!-- end of \1 -->", "", text, flags=re.S)
    return re.sub(r"^(?:#|\|).*$", "", text, flags=re.M)


def openings(text: str) -> list[str]:
    """Sentences that open with a clause as their subject; questions may."""
    found = [re.split(r"(?<=[.?:])\s", text[at.start(1) :])[0] for at in OPENING.finditer(text)]
    return [sentence for sentence in found if not sentence.endswith("?")]


def sentences(text: str) -> list[str]:
    """Sentences of paragraphs and of items of lists; an address of a link is no word."""
    plain = re.sub(r"\]\([^)]*\)", "]", re.sub(r"^\$\$.*?^\$\$", "", text, flags=re.M | re.S))
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", plain)
    return [
        sentence
        for block in blocks
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z*`\[])", " ".join(block.split()))
    ]


def test_a_sentence_is_short() -> None:
    found = [
        f"{page.relative_to(ROOT)}: {sentence}"
        for page in PAGES
        for sentence in sentences(prose(page))
        if len(sentence.split()) > MOST_WORDS
    ]
    assert len(found) <= MOST_LONG, found


def test_sentences_name_their_actor_first() -> None:
    found = [
        f"{page.relative_to(ROOT)}: {item}" for page in PAGES for item in openings(prose(page))
    ]
    assert len(found) <= MOST_OPENINGS, found


def test_an_actor_is_a_participant_and_not_everybody_or_nobody() -> None:
    found = [
        f"{page.relative_to(ROOT)}: {at.group()}"
        for page in PAGES
        for at in PRONOUN.finditer(prose(page))
    ]
    assert len(found) <= MOST_PRONOUNS, found


def test_an_opening_is_found_where_it_is_one() -> None:
    assert openings("One. What crosses is packed bits.") == ["What crosses is packed bits."]
    assert openings("- **Whoever has the key can\n  admit.** Two.") != []
    assert openings("What would it reach alone? It knows what it is.") == []


def test_a_sentence_ends_where_it_ends() -> None:
    text = "One [two](three four). Five\nsix.\n- Seven: `e.g.` eight.\n- Nine"
    assert sentences(text) == ["One [two].", "Five six.", "- Seven: `e.g.` eight.", "- Nine"]
