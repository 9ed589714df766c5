"""What a verb may take, and what may cross a link."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from colonnade.core.checkpoints import Checkpoints
from colonnade.core.doors import Door
from colonnade.core.errors import ProtocolError
from colonnade.core.fabric import isolated, num_payload_bytes
from colonnade.core.messages import Batch, Failure, Reply, pack_reply, unpack_reply
from colonnade.core.party import Party
from colonnade.core.respondent import check_arguments
from colonnade.core.verbs import Verb, collect_verbs, verb
from colonnade.parts.split_step import SplitParty
from messages import says


class Everything:
    """One verb for each kind of argument."""

    @verb
    def take_tensor(self, value: Tensor) -> None: ...

    @verb
    def take_batch(self, value: Batch) -> None: ...

    @verb
    def take_int(self, value: int) -> None: ...

    @verb
    def take_float(self, value: float) -> None: ...

    @verb
    def take_str(self, value: str) -> None: ...

    @verb
    def take_bool(self, value: bool) -> None: ...

    @verb
    def take_tensors(self, value: Mapping[str, Tensor]) -> None: ...

    @verb
    def take_numbers(self, value: dict[str, float]) -> None: ...

    @verb
    def take_tensor_or_none(self, value: Tensor | None) -> None: ...

    @verb
    def take_two(self, batch: Batch, count: int) -> None: ...

    @verb
    def take_nothing(self) -> None: ...

    def no_verb(self) -> None: ...


VERBS = collect_verbs(Everything)
SAMPLES: Mapping[str, Any] = {
    "tensor": torch.ones(2),
    "batch": Batch("train", 0),
    "int": 3,
    "float": 0.5,
    "str": "text",
    "bool": True,
    "tensors": {"x": torch.ones(2)},
    "numbers": {"x": 0.5},
    "none": None,
    "list": [1],
}
ADMITTED = {
    "take_tensor": {"tensor"},
    "take_batch": {"batch"},
    "take_int": {"int"},
    "take_float": {"float", "int"},
    "take_str": {"str"},
    "take_bool": {"bool"},
    "take_tensors": {"tensors"},
    "take_numbers": {"numbers"},
    "take_tensor_or_none": {"tensor", "none"},
}


class TestVerbs:
    def test_what_a_verb_says_it_returns(self) -> None:
        class Answers:
            @verb
            def whole(self) -> int: ...  # type: ignore[empty-body]

            @verb
            def maybe(self) -> Tensor | None: ...

            @verb
            def nothing(self) -> None: ...

            @verb
            def anything(self): ...  # type: ignore[no-untyped-def]

        found = {name: item.returns for name, item in collect_verbs(Answers).items()}
        assert found == {
            **{"whole": int, "maybe": Tensor | None, "nothing": type(None), "anything": Any}
        }

    def test_marked_methods_only(self) -> None:
        assert VERBS.keys() == {name for name in vars(Everything) if name.startswith("take_")}

    @pytest.mark.parametrize("name", ADMITTED)
    def test_arguments_are_checked_by_type(self, name: str) -> None:
        for sample, value in SAMPLES.items():
            if sample in ADMITTED[name]:
                check_arguments(VERBS[name], (value,))
            else:
                with pytest.raises(ProtocolError, match=says(f"'{name}'", "'value'")):
                    check_arguments(VERBS[name], (value,))

    @pytest.mark.parametrize("wrong", [{1: torch.ones(1)}, {"x": 1.0}, {"x": None}])
    def test_tables_are_checked_inside(self, wrong: dict[Any, Any]) -> None:
        check_arguments(VERBS["take_tensors"], ({},))
        with pytest.raises(ProtocolError):
            check_arguments(VERBS["take_tensors"], (wrong,))

    def test_complaint_quotes_no_value(self) -> None:
        with pytest.raises(ProtocolError) as caught:
            check_arguments(VERBS["take_int"], ("Ms. Secret",))
        assert "got str" in str(caught.value)
        assert "Secret" not in str(caught.value)

    def test_number_of_arguments(self) -> None:
        for arguments in ((), (Batch("train", 0),), (Batch("train", 0), 1, 2)):
            with pytest.raises(ProtocolError, match=says("'take_two'", 2, len(arguments))):
                check_arguments(VERBS["take_two"], arguments)
        check_arguments(VERBS["take_nothing"], ())

    @pytest.mark.parametrize(
        "kind", [list[int], Any, object, nn.Module, Mapping[int, Tensor], bytes]
    )
    def test_annotation_that_may_not_cross_a_link_is_refused_early(self, kind: Any) -> None:
        def take(self: Any, value: Any) -> None: ...

        take.__annotations__["value"] = kind
        with pytest.raises(TypeError, match=says("Wrong.take", "'value'", "annotation")):
            type("Wrong", (Party,), {"take": verb(take)})

    def test_missing_annotation_is_refused_early(self) -> None:
        def take(self, value): ...

        with pytest.raises(TypeError, match=says("Wrong.take", "'value'", "annotation")):
            type("Wrong", (Party,), {"take": verb(take)})

    def test_every_party_has_the_verbs_of_the_base_and_no_more(self) -> None:
        assert Party.verbs.keys() == {"infer", "refresh", "local_steps"}
        assert Checkpoints.verbs.keys() == {"keep", "retain", "fetch"}
        assert Door.verbs.keys() == {"confirm", "privacy_spent", "seal"}
        assert SplitParty.verbs.keys() == {*Party.verbs, "embed", "descend"}
        assert "descend" not in Party.verbs
        assert all(isinstance(item, Verb) for item in SplitParty.verbs.values())


class TestIsolated:
    def test_tensor_is_a_copy_without_graph(self) -> None:
        source = torch.ones(3, requires_grad=True)
        result = source * 2
        copied = isolated(result)
        assert torch.equal(copied, result)
        assert copied.grad_fn is None
        assert not copied.requires_grad
        copied.fill_(0.0)
        assert torch.equal(result, torch.full((3,), 2.0))

    def test_parameter_becomes_a_plain_tensor(self) -> None:
        assert type(isolated(nn.Parameter(torch.ones(1)))) is Tensor

    def test_view_does_not_bring_its_base_along(self) -> None:
        view = torch.arange(1000.0)[10:12]
        assert isolated(view).untyped_storage().nbytes() == 8

    def test_table_is_copied_through(self) -> None:
        table = {"x": torch.ones(1), "y": torch.zeros(1)}
        copied = isolated(table)
        copied["x"].fill_(7.0)
        del copied["y"]
        assert table["x"].item() == 1.0
        assert "y" in table

    @pytest.mark.parametrize("value", [None, 1, 0.5, True, "text", Batch("train", 3), {"a": 0.5}])
    def test_plain_values_pass(self, value: Any) -> None:
        assert isolated(value) == value

    @pytest.mark.parametrize(
        "value",
        [[1], (1,), object, b"x", {1}, {"a": [1]}, {7: 1.0}, {"a": {"b": 1.0}}, 1j],
        ids=repr,
    )
    def test_everything_else_is_refused(self, value: Any) -> None:
        with pytest.raises(ProtocolError, match=says(type(value).__name__, "link")):
            isolated(value)


class TestPayload:
    @pytest.mark.parametrize(
        ("value", "num_bytes"),
        [
            (None, 0),
            (3, 8),
            (0.5, 8),
            (True, 8),
            (Batch("train", 3), 8),
            ("abc", 3),
            ("ä", 2),
            (torch.zeros(3, 4), 48),
            (torch.zeros(3, 4, dtype=torch.float64), 96),
            (torch.zeros(5, dtype=torch.int8), 5),
            (torch.zeros(0), 0),
            ({"ab": torch.zeros(2), "c": torch.zeros(1)}, 2 + 8 + 1 + 4),
            ({"ab": 1.0}, 10),
        ],
    )
    def test_bytes(self, value: Any, num_bytes: int) -> None:
        assert num_payload_bytes(value) == num_bytes

    @given(shape=st.lists(st.integers(0, 5), max_size=3))
    def test_copy_weighs_the_same(self, shape: list[int]) -> None:
        value = {"x": torch.zeros(shape)}
        assert num_payload_bytes(isolated(value)) == num_payload_bytes(value)


class TestPacking:
    @pytest.mark.parametrize(
        "value",
        [None, 3, 0.5, "text", True, Batch("test", 4), {"x": 0.5}, {"batch": 1.0, "value": 2.0}],
    )
    def test_reply_survives(self, value: Any) -> None:
        reply = Reply(7, "bank", 3, value, None, 99)
        assert unpack_reply(copy.deepcopy(pack_reply(reply))) == reply

    def test_tensors_survive(self) -> None:
        reply = Reply(7, "bank", 3, {"x": torch.arange(3.0)}, None, 99)
        again = unpack_reply(pack_reply(reply))
        assert torch.equal(again.value["x"], torch.arange(3.0))

    def test_failure_survives_without_its_cause(self) -> None:
        failure = Failure("ValueError", "in verb 'embed'; see its log", ValueError("Ms. Secret"))
        again = unpack_reply(pack_reply(Reply(7, "bank", 3, None, failure, 99)))
        assert again.failure == failure
        assert again.failure.cause is None
        assert "Secret" not in repr(pack_reply(Reply(7, "bank", 3, None, failure, 99)))
