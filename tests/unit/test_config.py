"""Configuration: every mistake is named by its path, and what is dumped parses to the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colonnade.core.config import Choice, dump, nearest, parse
from colonnade.core.errors import ColonnadeError, ConfigError
from messages import says


class Shape:
    """What may be a circle or a box."""


@dataclass(frozen=True, kw_only=True)
class Circle(Shape):
    radius: float = 1.0

    def __post_init__(self) -> None:
        if self.radius <= 0:
            raise ConfigError(f"radius: must be above 0, got {self.radius}")


@dataclass(frozen=True, kw_only=True)
class Box(Shape):
    width: int
    height: int = 2


@dataclass(frozen=True, kw_only=True)
class Nothing(Shape):
    """A shape without settings."""


@dataclass(frozen=True, kw_only=True)
class Room:
    shape: Shape
    name: str = "hall"
    mode: Literal["open", "closed"] = "open"
    is_lit: bool = True
    weight: float = 0.5
    limit: int | None = None
    sizes: tuple[int, ...] = ()
    table: Mapping[str, float | bool] = field(default_factory=dict)
    folder: Path | None = None
    furniture: tuple[Shape, ...] = ()
    wings: Mapping[str, Shape] = field(default_factory=dict)
    derived: int = field(default=0, init=False)


OPTIONS = {"circle": Circle, "box": Box, "nothing": Nothing}
CHOICES = {Shape: Choice(tag="kind", options=OPTIONS)}


def room(path: str = "", **values: Any) -> Room:
    return parse(Room, {"shape": "circle"} | values, choices=CHOICES, path=path)


def complaint(**values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        room(**values)
    return str(caught.value)


class TestParse:
    def test_values_of_every_kind(self) -> None:
        made = room(
            shape={"kind": "box", "width": 3},
            name="cellar",
            mode="closed",
            is_lit=False,
            weight=2,
            limit=7,
            sizes=[1, 2],
            table={"momentum": 1, "nesterov": True},
            folder="data/x",
            furniture=["circle", {"kind": "box", "width": 1}],
            wings={"east": {"kind": "circle", "radius": 2}},
        )
        assert made == Room(
            shape=Box(width=3),
            name="cellar",
            mode="closed",
            is_lit=False,
            weight=2.0,
            limit=7,
            sizes=(1, 2),
            table={"momentum": 1.0, "nesterov": True},
            folder=Path("data/x"),
            furniture=(Circle(), Box(width=1)),
            wings={"east": Circle(radius=2.0)},
        )
        assert type(made.weight) is float
        assert type(made.table["momentum"]) is float
        assert made.table["nesterov"] is True

    def test_bare_tag_means_the_defaults(self) -> None:
        assert room(shape="circle").shape == Circle(radius=1.0)

    def test_bare_number_stands_for_what_the_choice_says(self) -> None:
        choices = {Shape: Choice(tag="kind", options=OPTIONS, number=("box", "width"))}
        assert parse(Room, {"shape": 4}, choices=choices).shape == Box(width=4)
        with pytest.raises(ConfigError, match=says("shape", "'kind'", True)):
            parse(Room, {"shape": True}, choices=choices)
        with pytest.raises(ConfigError, match=says("shape", "'kind'", 4)):
            room(shape=4)

    def test_ready_made_parts_pass(self) -> None:
        made = Box(width=9)
        assert room(shape=made).shape is made

    def test_absent_optional_keys_take_their_defaults(self) -> None:
        assert room() == Room(shape=Circle())
        assert room(limit=None).limit is None

    def test_the_given_mapping_is_left_alone(self) -> None:
        values = {"shape": {"kind": "box", "width": 3}}
        parse(Room, values, choices=CHOICES)
        assert values == {"shape": {"kind": "box", "width": 3}}


class TestComplaints:
    def test_unknown_key_names_its_path_and_the_nearest(self) -> None:
        assert complaint(nmae="x").startswith("nmae: unknown key; did you mean 'name'?")
        assert complaint(shape={"kind": "circle", "radios": 1}).startswith(
            "shape.radios: unknown key; did you mean 'radius'? (valid: radius)"
        )
        assert "it takes no keys" in complaint(shape={"kind": "nothing", "x": 1})

    def test_key_that_is_not_for_setting_is_unknown(self) -> None:
        assert complaint(derived=1).startswith("derived: unknown key")

    def test_missing_key(self) -> None:
        with pytest.raises(ConfigError, match=r"^shape: missing"):
            parse(Room, {}, choices=CHOICES)
        assert complaint(shape="box").startswith("shape.width: missing")

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ({"name": 3}, "name: expected a text, got 3 (int)"),
            ({"name": True}, "name: expected a text, got True (bool)"),
            ({"name": None}, "name: expected a text, got None (NoneType)"),
            ({"is_lit": 1}, "is_lit: expected true or false, got 1 (int)"),
            ({"is_lit": "yes"}, "is_lit: expected true or false, got 'yes' (str)"),
            ({"weight": "0.5"}, "weight: expected a number, got '0.5' (str)"),
            ({"weight": True}, "weight: expected a number, got True (bool)"),
            ({"limit": 1.0}, "limit: expected a whole number, got 1.0 (float)"),
            ({"limit": True}, "limit: expected a whole number, got True (bool)"),
            ({"sizes": 3}, "sizes: expected a list, got 3 (int)"),
            ({"sizes": "12"}, "sizes: expected a list, got '12' (str)"),
            ({"sizes": [1, "2"]}, "sizes[1]: expected a whole number, got '2' (str)"),
            ({"table": [1]}, "table: expected a table, got [1] (list)"),
            ({"table": {"x": "y"}}, "table.x: expected true or false, got 'y' (str)"),
            ({"folder": 3}, "folder: expected Path, got 3 (int)"),
            ({"shape": 3}, "shape: expected a name or a table with 'kind', got 3 (int)"),
            ({"shape": {}}, "shape.kind: missing; one of: box, circle, nothing"),
            ({"furniture": ["circle", {"kind": "box"}]}, "furniture[1].width: missing"),
            ({"wings": {"east": {"radius": 1}}}, "wings.east.kind: missing"),
        ],
    )
    def test_wrong_type_names_path_wanted_and_found(
        self, values: dict[str, Any], expected: str
    ) -> None:
        assert complaint(**values).startswith(expected)

    def test_unknown_name_names_the_nearest(self) -> None:
        assert complaint(mode="opened").startswith(
            "mode: unknown value 'opened'; did you mean 'open'? (valid: closed, open)"
        )
        assert complaint(shape="cirle").startswith(
            "shape.kind: unknown value 'cirle'; did you mean 'circle'?"
        )

    @pytest.mark.parametrize("tag", [["box"], {"box": 1}, 3, True])
    def test_tag_that_is_no_name_is_a_complaint_too(self, tag: Any) -> None:
        assert complaint(shape={"kind": tag}).startswith("shape.kind: ")

    def test_rule_of_the_class_itself_comes_with_the_path(self) -> None:
        message = complaint(shape={"kind": "circle", "radius": -1})
        assert message.startswith("shape")
        assert "radius: must be above 0, got -1.0" in message

    def test_outermost_path_goes_in_front(self) -> None:
        with pytest.raises(ConfigError, match=r"^parts\.room\.limit: .*'x'"):
            room("parts.room", limit="x")

    def test_what_is_no_table_at_all(self) -> None:
        with pytest.raises(ConfigError, match=says("table", 3)):
            parse(Room, 3, choices=CHOICES)

    def test_is_an_error_of_this_package_and_a_value_error(self) -> None:
        assert issubclass(ConfigError, ColonnadeError)
        assert issubclass(ConfigError, ValueError)


def test_nearest_says_what_is_valid_even_if_nothing_is_near() -> None:
    assert nearest("zzz", ["mlp", "cnn"]) == "; (valid: cnn, mlp)"


SHAPES = st.one_of(
    st.builds(Circle, radius=st.floats(0.1, 10.0)),
    st.builds(Box, width=st.integers(), height=st.integers()),
    st.just(Nothing()),
)
TEXT = st.text(max_size=5)


@given(
    made=st.builds(
        Room,
        shape=SHAPES,
        name=TEXT,
        mode=st.sampled_from(["open", "closed"]),
        is_lit=st.booleans(),
        weight=st.floats(allow_nan=False, allow_infinity=False),
        limit=st.none() | st.integers(),
        sizes=st.lists(st.integers(), max_size=3).map(tuple),
        table=st.dictionaries(TEXT, st.floats(-1.0, 1.0) | st.booleans(), max_size=3),
        folder=st.none() | st.sampled_from([Path("a/b"), Path("/c")]),
        furniture=st.lists(SHAPES, max_size=3).map(tuple),
        wings=st.dictionaries(TEXT, SHAPES, max_size=3),
    )
)
def test_what_is_dumped_goes_through_json_and_parses_to_the_same(made: Room) -> None:
    plain = json.loads(json.dumps(dump(made, choices=CHOICES)))
    assert "derived" not in plain
    assert parse(Room, plain, choices=CHOICES) == made
