"""Pages name the actor first, and a sentence is read once.

Few sentences open with a clause, have a pronoun for an actor, or more than 25 words. No line is
read as something else than was meant: a minus that begins a line is an item of a list.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
# There were 127, 118 and 335 over all pages. A list of names is a long sentence.
MOST_OPENINGS = 0
MOST_PRONOUNS = 0
MOST_LONG = 12
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
        for sentence in re.split(r"(?<=[.!?])\**\s+(?=[A-Z*`\[])", " ".join(block.split()))
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


def items_by_accident(text: str) -> list[str]:
    """Lines that continue a sentence and begin with a sign that makes them an item of a list."""
    found = []
    lines = prose_lines(text)
    for before, line in itertools.pairwise(lines):
        begun = re.match(r"(\s*)(?:[-+*]|\d+[.)]) ", line)
        same = re.match(r"\s*(?:[-+*]|\d+[.)]) ", before)
        indented = len(before) - len(before.lstrip())
        # After an item's own continuation, which is indented further, the next item may follow.
        if begun and before.strip() and not same and indented <= len(begun[1]):
            found.append(line)
    return found


def prose_lines(text: str) -> list[str]:
    """Lines outside of blocks of code; a table is no sentence."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return ["" if line.startswith(("|", "#")) else line for line in text.splitlines()]


def test_no_line_becomes_an_item_of_a_list_by_accident() -> None:
    found = {
        str(page.relative_to(ROOT)): items
        for page in PAGES
        if (items := items_by_accident(page.read_text("utf-8")))
    }
    assert found == {}


def test_an_accidental_item_is_found() -> None:
    assert items_by_accident("the sum of\n- 1 embeddings") == ["- 1 embeddings"]
    assert items_by_accident("- the others' C\n  - 1 embeddings.") == []  # an item inside an item
    assert items_by_accident("- others have C\n  or\n  - 1 of them") == ["  - 1 of them"]
    assert items_by_accident("- one\n  goes on\n- two\n\n1. three\n2. four") == []


def test_an_opening_is_found_where_it_is_one() -> None:
    assert openings("One. What crosses is packed bits.") == ["What crosses is packed bits."]
    assert openings("- **Whoever has the key can\n  admit.** Two.") != []
    assert openings("What would it reach alone? It knows what it is.") == []


def test_a_sentence_ends_where_it_ends() -> None:
    text = "One [two](three four). Five\nsix.\n- Seven: `e.g.` eight.\n- Nine"
    assert sentences(text) == ["One [two].", "Five six.", "- Seven: `e.g.` eight.", "- Nine"]
