"""What a participant of an alignment refuses although every seal is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from alignments import PEOPLE, Federation
from colonnade.align.group import CHUNK
from colonnade.align.participant import AlignParty
from colonnade.align.participant_round import NUM_CHECKS, begin_round
from colonnade.align.sealing import as_tensor, make_seal, position_in_rounds
from colonnade.core.errors import ProtocolError
from colonnade.core.messages import Call

SIZES = {name: float(len(items) + NUM_CHECKS) for name, items in PEOPLE.items()}
OWN_IDS = len(PEOPLE["shop"])
# The participants in their order; a sample's bits say who has it.
BANK, SHOP, TELCO = 1, 2, 4


def ask(party: AlignParty, verb: str, *arguments: Any) -> Any:
    reply = party.execute(Call(0, party.name, verb, arguments, 0, True))
    return reply if reply.failure is None else reply.failure.message


def begun(mode: str = "union") -> AlignParty:
    """'shop', with three ids, where a label holder has opened an alignment."""
    party = Federation(PEOPLE, mode=mode).everyone["shop"]
    tag = ask(party, "terms", "run", 0).value
    assert ask(party, "enter", "run", 0, tag, False).value == OWN_IDS + NUM_CHECKS
    return party


def admitted(mode: str = "union") -> AlignParty:
    party = begun(mode)
    assert ask(party, "admit", SIZES, "bank").value is None
    return party


def trace(party: AlignParty, positions: Sequence[int], *, start: int = 0, round_number: int = 0):
    places = np.array(positions, dtype=np.int64)
    seal = make_seal("run", 0, "bank", -3, position_in_rounds(round_number, start), places)
    return ask(party, "trace", round_number, 1, start, as_tensor(places), as_tensor(seal))


def assign(party: AlignParty, numbers: Mapping[int, int]) -> None:
    """Give sample numbers to entries of the own list, by their places in it."""
    order = ask(party, "locate")
    checks = set(order.value["content"].tolist())
    places = [at for at in range(OWN_IDS + NUM_CHECKS) if at not in checks]
    where = np.array([places[entry] for entry in numbers], dtype=np.int64)
    found = np.array(list(numbers.values()), dtype=np.int32)
    seal = make_seal("run", 0, "shop", -30, 0, where, found)
    assert ask(party, "assign", as_tensor(where), as_tensor(found), as_tensor(seal)).failure is None


def conclude(party: AlignParty, bits: Sequence[int], num_samples: int | None = None) -> Any:
    table = np.array(bits, dtype=np.int32)
    seal = make_seal("run", 0, "shop", -31, 0, table)
    assert ask(party, "describe", 0, as_tensor(table), as_tensor(seal)).failure is None
    return ask(party, "conclude", len(bits) if num_samples is None else num_samples)


class TestBeginning:
    @pytest.mark.parametrize(("round_number", "resume"), [(1, False), (0, True)])
    def test_what_it_does_not_know_it_does_not_continue(self, round_number, resume):
        party = Federation(PEOPLE, mode="union").everyone["shop"]
        tag = ask(party, "terms", "run", round_number).value
        assert "party 'shop'" in ask(party, "enter", "run", round_number, tag, resume)

    @pytest.mark.parametrize(("run", "round_number"), [("run", 1), ("another", 0)])
    def test_an_interrupted_round_is_resumed_as_itself(self, run, round_number):
        party = begun()
        tag = ask(party, "terms", run, round_number).value
        assert "party 'shop'" in ask(party, "enter", run, round_number, tag, True)
        tag = ask(party, "terms", "run", 0).value
        assert ask(party, "enter", "run", 0, tag, True).value == OWN_IDS + NUM_CHECKS


class TestTracing:
    def test_as_many_samples_as_it_has_ids_are_traced(self):
        party = admitted("intersection")
        assert len(trace(party, range(OWN_IDS)).value["content"]) == OWN_IDS

    def test_one_more_is_refused(self):
        party = admitted("intersection")
        assert f"trace {OWN_IDS + 1} samples" in trace(party, range(OWN_IDS + 1))

    def test_pieces_count_together(self):
        party = admitted("intersection")
        assert trace(party, range(OWN_IDS - 1)).failure is None
        assert trace(party, [OWN_IDS], start=OWN_IDS - 1).failure is None
        assert f"trace {OWN_IDS + 1} samples" in trace(party, [OWN_IDS + 1], start=OWN_IDS)

    @pytest.mark.parametrize("round_number", [-1, 1])
    def test_only_of_rounds_that_were(self, round_number):
        party = admitted("intersection")
        assert f"no round {round_number}" in trace(party, [0], round_number=round_number)


class TestBlinding:
    LENGTH = int(SIZES["telco"])

    def blind(self, points: np.ndarray, *, start: int = 0, owner: str = "telco") -> Any:
        seal = make_seal("run", 0, owner, 0, start, points)
        given = as_tensor(points), as_tensor(seal)
        return ask(admitted(), "blind", owner, 1, start, *given)

    @pytest.mark.parametrize("shape", [(2, 31), (2, 33), (64,), (2, 32, 1)])
    def test_points_have_a_shape(self, shape):
        assert f"shape {shape}" in self.blind(np.zeros(shape, np.uint8))

    def test_points_are_bytes(self):
        assert "shape (2, 32)" in self.blind(np.zeros((2, 32), np.int64))

    @pytest.mark.parametrize("start", [0, 1, -CHUNK, CHUNK])
    def test_only_a_list_that_was_told_and_in_whole_chunks(self, start):
        refused = self.blind(np.zeros((self.LENGTH + 1, 32), np.uint8), start=start)
        end = start + self.LENGTH + 1
        assert f"ids {start} to {end} of 'telco', whose list has {self.LENGTH}" in refused

    def test_not_ones_own(self):
        assert "of 'shop'" in self.blind(np.zeros((1, 32), np.uint8), owner="shop")


class TestLengths:
    def test_are_told_once_even_if_they_are_the_same(self):
        assert "told once" in ask(admitted(), "admit", SIZES, "bank")

    @pytest.mark.parametrize("missing", ["shop", "bank"])
    def test_include_ones_own_and_the_label_holders(self, missing):
        sizes = {name: size for name, size in SIZES.items() if name != missing}
        assert "all of them" in ask(begun(), "admit", sizes, "bank")

    def test_are_not_below_the_check_points(self):
        at_least = {**SIZES, "telco": float(NUM_CHECKS)}
        assert ask(begun(), "admit", at_least, "bank").failure is None
        below = {**SIZES, "telco": NUM_CHECKS - 1.0}
        assert "impossible lengths" in ask(begun(), "admit", below, "bank")

    def test_are_of_at_most_twenty_lists(self):
        twenty = SIZES | {f"party {number}": 10.0 for number in range(17)}
        assert ask(begun(), "admit", twenty, "bank").failure is None
        assert "21 lists" in ask(begun(), "admit", {**twenty, "one more": 10.0}, "bank")


class TestConclusion:
    NUMBERS = {0: 0, 1: 2}  # noqa: RUF012
    BITS = (SHOP | BANK, BANK, SHOP)

    def test_a_table_that_fits_is_taken(self):
        party = admitted()
        assign(party, self.NUMBERS)
        assert conclude(party, self.BITS).failure is None

    def test_of_another_number_of_samples(self):
        party = admitted()
        assign(party, self.NUMBERS)
        assert "table of 3 samples" in conclude(party, self.BITS, num_samples=4)

    @pytest.mark.parametrize("bits", [(SHOP, SHOP, SHOP), (SHOP, BANK, TELCO), (BANK, SHOP, SHOP)])
    def test_that_gives_it_other_samples(self, bits):
        party = admitted()
        assign(party, self.NUMBERS)
        assert "2 of its ids have a sample number" in conclude(party, bits)

    def test_with_one_number_for_two_of_its_ids(self):
        party = admitted()
        assign(party, {0: 0, 1: 2, 2: 2})
        assert "3 of its ids have a sample number" in conclude(party, self.BITS)

    def test_with_a_number_that_is_not_in_the_table(self):
        party = admitted()
        assign(party, {0: 0, 1: 2, 2: 3})
        assert "3 of its ids have a sample number" in conclude(party, self.BITS)


def test_an_extension_that_was_interrupted_is_begun_again() -> None:
    state = begin_round(None, "run", 0, "telco")
    state.round, state.finished = 1, False
    state.numbers = np.arange(5, dtype=state.numbers.dtype)
    state.ends, state.passed = [3, 5], [7, 9]
    again = begin_round(state, "run", 1, "telco")
    assert (again.numbers.tolist(), list(again.ends), list(again.passed)) == ([0, 1, 2], [3], [7])
    assert (again.round, again.finished) == (1, False)
    for other in (0, 2, 3):
        state.round, state.finished = other, other != 0
        with pytest.raises(ProtocolError, match="1"):
            begin_round(state, "run", 1, "telco")
    state.round, state.finished = 0, True
    assert begin_round(state, "run", 1, "telco").round == 1
