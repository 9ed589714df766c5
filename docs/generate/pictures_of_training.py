"""Pictures of training: columns, one exchange, timelines, presence, and which method."""

from __future__ import annotations

from drawing import AMBER, BLUE, GREEN, GREY, INK, PURPLE, Drawing

__all__ = ["choose", "exchange", "fusion", "presence", "timelines"]

_PARTIES = (("bank", BLUE), ("telco", AMBER), ("shop", GREEN))


def fusion() -> Drawing:
    """Columns, encoders, fusion."""
    d = Drawing(
        640,
        330,
        title="Columns, encoders, fusion",
        about="Bank, telco and shop each turn their columns into an embedding with an encoder of "
        "their own. The label holder fuses the embeddings into a prediction. Columns never leave.",
    )
    for place, (name, color) in enumerate(_PARTIES):
        y = 22 + place * 100
        d.box(12, y, 286, 86, color=color, dashed=True)
        d.words(22, y + 14, name, color=color, anchor="start", bold=True)
        for column in range(3):
            for row in range(4):
                d.box(24 + column * 22, y + 26 + row * 13, 20, 11, color=color)
        d.words(112, y + 56, "→", size=20, color=color)
        top, bottom = y + 26, y + 76
        corners = [(132, top), (214, top + 12), (214, bottom - 12), (132, bottom)]
        d.polygon(corners, color=color)
        d.words(173, y + 51, "encoder", size=14, color=color)
        for number in range(4):
            d.box(252, y + 31 + number * 10, 16, 9, color=color, fill=color)
        d.words(233, y + 51, "→", size=20, color=color)
        d.line((272, y + 51), (400, 150 + (place - 1) * 28), color=color, arrow=True)
    d.words(344, 60, "embeddings", size=12, color=GREY)
    d.words(344, 262, "gradients", size=12, color=GREY)
    d.words(344, 278, "come back", size=12, color=GREY)
    d.box(390, 48, 238, 230, color=PURPLE, dashed=True)
    d.words(400, 64, "label holder", color=PURPLE, anchor="start", bold=True)
    d.polygon([(404, 96), (496, 116), (496, 184), (404, 204)], color=PURPLE)
    d.words(450, 150, "fusion", color=PURPLE)
    d.line((498, 150), (524, 150), color=PURPLE, arrow=True)
    d.box(526, 130, 92, 40, "prediction", color=PURPLE)
    d.box(526, 210, 92, 40, "labels", color=PURPLE)
    d.line((572, 208), (572, 172), color=PURPLE, dashed=True, arrow=True)
    d.words(552, 190, "loss", size=13, color=GREY)
    return d


def exchange() -> Drawing:
    """One SplitNN exchange, with the work at each side."""
    d = Drawing(
        640,
        400,
        title="One exchange of SplitNN",
        about="The label holder names a batch; every party encodes its rows and sends the embedding; "
        "the label holder fuses, computes the loss, updates the fusion model and returns a gradient "
        "to each party, which updates its encoder.",
    )
    lanes = ((90, "bank", BLUE), (320, "label holder", PURPLE), (550, "telco", AMBER))
    for x, name, color in lanes:
        d.box(x - 66, 14, 132, 30, name, color=color, bold=True)
        d.line((x, 46), (x, 388), color=GREY, dashed=True, width=1)
    steps = (
        (78, "1  batch 17", True, INK),
        (172, "2  embedding", False, INK),
        (296, "4  gradient", True, INK),
    )
    for y, label, outward, color in steps:
        for x in (90, 550):
            side = 1 if x > 320 else -1
            near, far = (320 + side * 4, y), (x - side * 4, y)
            d.line(*((near, far) if outward else (far, near)), color=color, arrow=True)
            d.words((320 + x) / 2, y - 12, label, size=13)
    for x, color in ((90, BLUE), (550, AMBER)):
        d.box(
            x - 78,
            102,
            156,
            44,
            ("encode own rows", "h = h(θ; x)"),
            color=color,
            size=13,
            opaque=True,
        )
        d.box(
            x - 78,
            326,
            156,
            44,
            ("carry gradient on,", "update encoder"),
            color=color,
            size=13,
            opaque=True,
        )
    d.box(
        230,
        202,
        180,
        62,
        ("3  fuse, loss, update", "fusion; gradient for", "every embedding"),
        color=PURPLE,
        size=13,
        opaque=True,
    )
    return d


def timelines() -> Drawing:
    """Who waits for whom, by three kinds of method."""
    d = Drawing(
        640,
        440,
        title="Timelines with one slow party",
        about="Synchronous: the fast party waits for the slow one in every exchange. Asynchronous: "
        "each party is answered at once. Flex: each makes as many local steps as fit before a timeout.",
    )
    left, unit = 92, 44
    end = left + 12 * unit

    def lane(y: int, name: str, color: str, bars: list[tuple[float, float, str]]) -> None:
        d.words(left - 10, y + 13, name, size=13, color=color, anchor="end")
        for start, stop, kind in bars:
            x, width = left + start * unit, (stop - start) * unit - 2
            if kind == "wait":
                d.box(
                    x,
                    y,
                    width,
                    26,
                    "waits" if width > 60 else (),
                    color=GREY,
                    dashed=True,
                    fill="#ffffff",
                    size=13,
                )
            else:
                d.box(x, y, width, 26, kind, color=color, size=13)

    def heading(y: int, name: str, text: str) -> None:
        d.words(14, y, name, anchor="start", bold=True)
        d.words(150, y, text, size=13, color=GREY, anchor="start")

    heading(22, "Synchronous", "every exchange waits for the slowest party (SplitNN, FedBCD)")
    lane(
        36,
        "fast",
        BLUE,
        [(a + b, a + c, k) for a in (0, 4, 8) for b, c, k in ((0, 1, "1"), (1, 4, "wait"))],
    )
    lane(66, "slow", AMBER, [(a, a + 4, "1") for a in (0, 4, 8)])
    for x in (4, 8, 12):
        d.line((left + x * unit - 1, 32), (left + x * unit - 1, 96), color=PURPLE, width=2)
    heading(128, "Asynchronous", "each upload is answered at once (async, VAFL)")
    lane(142, "fast", BLUE, [(a, a + 1, "1") for a in range(12)])
    lane(172, "slow", AMBER, [(a, a + 4, "1") for a in (0, 4, 8)])
    for x in range(1, 13):
        d.line((left + x * unit - 1, 138), (left + x * unit - 1, 169), color=PURPLE, width=2)
    for x in (4, 8, 12):
        d.line((left + x * unit - 1, 171), (left + x * unit - 1, 202), color=PURPLE, width=2)
    heading(234, "Flex", "local steps until a timeout; each makes as many as fit")
    lane(248, "fast", BLUE, [(a + b, a + b + 1, "step") for a in (0, 6) for b in range(6)])
    lane(278, "slow", AMBER, [(a + b, a + b + 3, "step") for a in (0, 6) for b in (0, 3)])
    for x in (6, 12):
        d.line((left + x * unit - 1, 244), (left + x * unit - 1, 308), color=PURPLE, width=2)
    d.line((left, 338), (end, 338), color=INK, arrow=True)
    d.words(end - 40, 356, "time", size=13)
    d.line((left, 386), (left + 30, 386), color=PURPLE, width=2)
    d.words(left + 40, 386, "the label holder updates the fusion model", size=13, anchor="start")
    d.box(left, 402, 30, 22, "1", color=BLUE, size=13)
    d.words(left + 40, 413, "a party computes on one batch", size=13, anchor="start")
    return d


def presence() -> Drawing:
    """A presence matrix, and what methods make of it."""
    d = Drawing(
        640,
        366,
        title="A presence matrix",
        about="Eight customers in rows, three parties in columns. Some cells are empty. Methods such "
        "as SplitNN learn from complete rows only; LASER learns from every row.",
    )
    rows = ("111", "110", "101", "111", "011", "100", "111", "010")
    for place, (name, color) in enumerate(_PARTIES):
        d.words(150 + place * 84, 24, name, color=color, bold=True)
    for row, present in enumerate(rows):
        y = 42 + row * 34
        d.words(92, y + 14, f"customer {row + 1}", size=13, color=GREY, anchor="end")
        for place, (_, color) in enumerate(_PARTIES):
            x = 112 + place * 84
            if present[place] == "1":
                d.box(x, y, 76, 28, "block", color=color, size=13)
            else:
                d.box(x, y, 76, 28, color=GREY, fill="#ffffff", dashed=True)
        whole = present == "111"
        d.words(
            390,
            y + 14,
            "complete" if whole else "incomplete",
            size=13,
            color=INK if whole else GREY,
            anchor="start",
        )
        d.words(560, y + 14, "LASER", size=13, color=PURPLE, anchor="start")
        if whole:
            d.words(484, y + 14, "SplitNN", size=13, color=PURPLE, anchor="start")
    d.words(390, 24, "row is", size=13, color=GREY, anchor="start")
    d.words(484, 24, "learned from by", size=13, color=GREY, anchor="start")
    d.words(
        320,
        338,
        "alignment finds the matrix privately; mode union keeps every row",
        size=13,
        color=GREY,
    )
    return d


def choose() -> Drawing:
    """A decision tree for methods."""
    d = Drawing(
        640,
        452,
        title="Which method",
        about="Are blocks missing? LASER, or PlugVFL if bytes matter. Is a party slow? VAFL, or Flex if "
        "all must take part. Must each party keep a whole model? EASTER. Are round trips expensive? "
        "FedBCD; is the uplink narrow? C-VFL. Otherwise SplitNN.",
    )
    questions = (
        ("Are customers missing at some party?", "laser", "plug, if bytes matter more"),
        ("Is a party much slower than the rest?", "vafl", "flex, if all must take part"),
        ("Does each party want a whole model?", "easter", "it shows labels to parties"),
        ("Are round trips expensive?", "fedbcd", "several local steps each"),
        ("Is the uplink narrow?", "cvfl", "compressed embeddings"),
    )
    for place, (question, method, note) in enumerate(questions):
        y = 16 + place * 76
        d.box(12, y, 300, 44, question, color=GREY, fill="#ffffff")
        d.line((314, y + 22), (378, y + 22), color=INK, arrow=True)
        d.words(344, y + 10, "yes", size=13, color=GREY)
        d.box(380, y, 246, 44, color=BLUE)
        d.words(503, y + 13, method, color=BLUE, bold=True)
        d.words(503, y + 31, note, size=13, color=INK, room=242)
        d.line((162, y + 46), (162, y + 74), color=INK, arrow=True)
        d.words(182, y + 58, "no", size=13, color=GREY)
    d.box(12, 396, 300, 44, color=PURPLE)
    d.words(162, 409, "splitnn", color=PURPLE, bold=True)
    d.words(162, 427, "one step an exchange", size=13)
    return d
