"""Pictures of federations: alignment, trust, doors, checkpoints, and the layers of the package."""

from __future__ import annotations

import tomllib
from pathlib import Path

from drawing import AMBER, BLUE, GREEN, GREY, INK, PURPLE, RED, Drawing

__all__ = ["door", "layers", "resume", "ring", "trust"]


def ring() -> Drawing:
    """The alignment ring."""
    d = Drawing(
        640,
        392,
        title="The alignment ring",
        about="Each party hashes and blinds its ids with a secret number. Lists travel round the ring "
        "of parties; each multiplies them by its own secret. The label holder comes last and compares "
        "points that all have blinded.",
    )
    spots = (
        (110, 60, "bank", BLUE, "a"),
        (420, 60, "telco", AMBER, "b"),
        (265, 226, "shop", GREEN, "c"),
    )
    for x, y, name, color, secret in spots:
        d.box(x, y, 132, 62, (name, f"secret {secret}"), color=color, bold=True)
    d.line((244, 80), (418, 80), color=BLUE, arrow=True)
    d.words(331, 66, "a·H(id)", size=14, color=BLUE)
    d.line((470, 124), (390, 224), color=AMBER, arrow=True)
    d.words(492, 178, "ab·H(id)", size=14, color=AMBER)
    d.line((270, 224), (190, 124), color=GREEN, dashed=True, arrow=True)
    d.words(120, 178, "the shop's list goes on", size=13, color=GREEN)
    d.box(214, 330, 234, 48, ("label holder: secret s,", "compares abcs·H(id)"), color=PURPLE)
    d.line((331, 290), (331, 328), color=GREEN, arrow=True)
    d.words(394, 308, "abc·H(id)", size=14, color=GREEN)
    d.words(
        320,
        26,
        "equal ids become equal points; no one can make such a point alone",
        size=13,
        color=GREY,
    )
    d.words(108, 354, "numbers go back:", size=13, color=GREY)
    d.words(108, 372, "who has which", size=13, color=GREY)
    return d


def trust() -> Drawing:
    """Hub, agents, and the trust boundary of each organisation."""
    d = Drawing(
        640,
        384,
        title="Hub, agents and trust boundaries",
        about="Three organisations, each with a boundary. Inside each party: table, agent, policy, "
        "ledger, weights. Agents dial out over mutual TLS to the hub in the label holder's "
        "organisation. Nothing dials in.",
    )
    for x, name, color in ((14, "telco", AMBER), (436, "shop", GREEN)):
        d.box(x, 14, 190, 190, color=color, dashed=True)
        d.words(x + 95, 32, name, color=color, bold=True)
        d.box(x + 14, 48, 76, 44, ("table,", "account"), color=color, size=13)
        d.box(x + 100, 48, 76, 44, ("policy,", "ledger"), color=color, size=13)
        d.box(x + 14, 102, 162, 36, "encoder, weights", color=color, size=13)
        d.box(x + 50, 152, 90, 36, "agent", color=color, bold=True)
        d.line((x + 95, 138), (x + 95, 152), color=color)
    d.box(132, 240, 376, 130, color=PURPLE, dashed=True)
    d.words(320, 352, "bank (label holder)", color=PURPLE, bold=True)
    d.box(150, 290, 104, 44, ("labels,", "own columns"), color=PURPLE, size=13)
    d.box(386, 290, 104, 44, ("fusion model,", "authority"), color=PURPLE, size=13)
    d.box(275, 254, 90, 40, "hub", color=PURPLE, bold=True)
    d.line((140, 190), (273, 266), color=AMBER, width=2, arrow=True)
    d.line((500, 190), (367, 266), color=GREEN, width=2, arrow=True)
    d.words(320, 190, "mutual TLS", size=14)
    d.words(320, 210, "agents dial out", size=13, color=GREY)
    d.words(320, 100, "columns, keys and", size=13, color=GREY)
    d.words(320, 118, "weights stay inside", size=13, color=GREY)
    return d


def door() -> Drawing:
    """What passes a party's door."""
    d = Drawing(
        640,
        344,
        title="A party's door",
        about="A verb returns a tensor. Undeclared tensors are refused. Protections change it, the "
        "policy permits or refuses it, the account is charged, the ledger is written; then it leaves.",
    )
    d.box(12, 12, 486, 250, color=BLUE, dashed=True)
    d.words(24, 30, "inside the party", color=BLUE, anchor="start", bold=True)
    steps = (
        ("declared?", "kind of", "tensor"),
        ("protect", "clip, noise,", "blind, pack"),
        ("policy", "this party's", "rules"),
        ("account", "budget of", "each person"),
        ("ledger", "hash chain"),
    )
    for place, (name, *about) in enumerate(steps):
        x = 24 + place * 94
        d.box(x, 110, 84, 66, color=BLUE)
        d.words(x + 42, 124, name, size=13, color=BLUE, bold=True, room=84)
        for line, text in enumerate(about):
            d.words(x + 42, 144 + line * 16, text, size=12, color=INK, room=84)
        if place < 4:
            d.line((x + 84, 143), (x + 94, 143), color=BLUE)
        if place in (0, 2, 3):
            d.line((x + 42, 178), (x + 42, 214), color=RED, arrow=True)
            d.words(x + 42, 228, "refused", size=13, color=RED)
    d.box(24, 52, 240, 34, "answer of a verb: an embedding", color=BLUE, size=13)
    d.line((66, 87), (66, 108), color=BLUE, arrow=True)
    d.line((486, 143), (546, 143), color=BLUE, width=2, arrow=True)
    d.box(548, 112, 80, 62, ("label", "holder"), color=PURPLE)
    d.words(
        320,
        290,
        "columns, labels, weights and secrets have no verb: nothing asks for them",
        size=13,
        color=GREY,
    )
    d.words(
        320,
        314,
        "the label holder has such a door too, for gradients and averages",
        size=13,
        color=GREY,
    )
    return d


def resume() -> Drawing:
    """Checkpoint and resume."""
    d = Drawing(
        640,
        250,
        title="Checkpoint and resume",
        about="Checkpoints are taken between exchanges. A run that is killed after the second "
        "checkpoint goes on from it and ends with the weights of an uninterrupted run.",
    )

    def run(y: int, name: str, first: int, last: int, color: str) -> None:
        d.words(88, y + 14, name, size=13, color=GREY, anchor="end")
        for number in range(first, last):
            d.box(98 + number * 50, y, 46, 28, str(number + 1), color=color, size=13)

    run(34, "unbroken", 0, 10, BLUE)
    run(104, "killed", 0, 7, AMBER)
    run(174, "--resume", 6, 10, GREEN)
    for number in (0, 3, 6, 9):
        x = 98 + number * 50 - 2
        d.line((x, 26), (x, 70), color=PURPLE, width=2.5)
        if number <= 6:
            d.line((x, 96), (x, 140), color=PURPLE, width=2.5)
    d.words(470, 118, "✕", size=24, color=RED)
    d.line((396, 140), (396, 172), color=PURPLE, width=2.5, arrow=True)
    d.words(386, 158, "last checkpoint that all have", size=13, color=PURPLE, anchor="end")
    d.words(
        320, 226, "identical weights at the end (conditions: Compatibility)", size=13, color=GREY
    )
    d.words(98, 14, "checkpoints", size=13, color=PURPLE, anchor="start")
    return d


def layers() -> Drawing:
    """The rows of packages, from the contract that import-linter checks."""
    root = Path(__file__).parents[2]
    linter = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    (found,) = [item["layers"] for item in linter["contracts"] if item["type"] == "layers"]
    rows = [[name.strip().removeprefix("colonnade.") for name in row.split("|")] for row in found]
    d = Drawing(
        640,
        40 + 44 * len(rows) + 16,
        title="The layers of the package",
        about="Rows of packages from top to bottom: "
        + "; ".join(", ".join(row) for row in rows)
        + ". A package imports only from rows below its own.",
    )
    d.words(320, 20, "a package imports only from rows below its own", size=13, color=GREY)
    colors = (PURPLE, BLUE, GREEN, AMBER)
    for place, row in enumerate(rows):
        y, gap = 38 + place * 44, 6
        width = (616 - gap * (len(row) - 1)) / len(row)
        for column, name in enumerate(row):
            x = 12 + column * (width + gap)
            d.box(x, y, width, 36, name, color=colors[place % 4], size=14 if len(row) < 6 else 13)
    return d
