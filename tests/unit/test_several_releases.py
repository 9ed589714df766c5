"""Several encodings in one call, and encodings after a restored state: each counts by itself."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from colonnade.core.batches import BatchPlan
from colonnade.core.doors import Door
from colonnade.core.errors import DataError
from colonnade.core.messages import Batch, Call
from colonnade.core.party import Part, Party
from colonnade.core.releases import Embedding
from colonnade.core.verbs import verb
from colonnade.protect.compress import TopK, unpack
from colonnade.protect.perturb import Perturb
from colonnade.protect.protection_spec import Place, ProtectionSpec
from federations import PLAIN_SGD, features_of, mlp, seeded_module

# Both have all the samples, so that two releases count twice for each of them.
FIRST, SECOND = Batch("train", 0), Batch("train", 1)
PERTURB = Perturb(noise=1.0, clip=0.5, delta=1e-5)


class Twofold(Party):
    """Sends what it encodes one by one, or two at once."""

    @verb
    def embed(self, batch: Batch) -> Embedding:
        return self.encode(batch)

    @verb
    def embed_both(self, first: Batch, second: Batch) -> Mapping[str, Embedding]:
        return {"first": self.encode(first), "second": self.encode(second)}

    @verb
    def embed_and_fail(self, batch: Batch) -> Embedding:
        self.encode(batch)
        raise DataError("the disk is full; make room")


def protected(*protections: ProtectionSpec) -> Twofold:
    """Always the same party: same columns, same weights, same secret."""
    encoder = seeded_module(lambda: mlp(embedding=6)(3), torch.float32, 0)
    plan = BatchPlan(8, 8, seed=0, shuffle=True)
    part = Part(features=features_of("a", 8, 3, 0, torch.float32), plan=plan)
    place = Place(owner="a", encoder=encoder, secret=b"s" * 32)
    door = Door(owner="a", protections=[item.stand_at(place) for item in protections])
    return Twofold(
        name="a",
        encoder=encoder,
        optimizer=PLAIN_SGD,
        parts={"train": part},
        deterministic=True,
        door=door,
    )


def ask(party: Party, verb: str, *arguments: Any) -> Any:
    reply = party.execute(Call(0, "a", verb, arguments, 0, True))
    assert reply.failure is None, reply.failure
    return reply.value


class TestTwoInOneCall:
    def test_both_are_charged(self) -> None:
        together, apart, once = (protected(PERTURB) for _ in range(3))
        ask(together, "embed_both", FIRST, SECOND)
        ask(apart, "embed", FIRST)
        ask(once, "embed", FIRST)
        assert ask(apart, "privacy_spent") == ask(once, "privacy_spent")
        ask(apart, "embed", SECOND)
        spent = ask(together, "privacy_spent")
        assert spent == ask(apart, "privacy_spent")
        assert spent["epsilon"] > ask(once, "privacy_spent")["epsilon"] > 0

    def test_the_same_twice_is_one_release(self) -> None:
        together, once = protected(PERTURB), protected(PERTURB)
        both = ask(together, "embed_both", FIRST, FIRST)
        assert torch.equal(both["first"], both["second"])
        ask(once, "embed", FIRST)
        assert ask(together, "privacy_spent") == ask(once, "privacy_spent")

    @pytest.mark.parametrize(
        "protection", [PERTURB, TopK(keep=0.5), TopK(keep=0.5, feedback=True)], ids=str
    )
    def test_both_leave_as_they_would_one_by_one(self, protection: ProtectionSpec) -> None:
        together, apart, bare = protected(protection), protected(protection), protected()
        both = ask(together, "embed_both", FIRST, SECOND)
        assert not torch.equal(both["first"], both["second"])
        for batch, found in ((FIRST, both["first"]), (SECOND, both["second"])):
            assert torch.equal(found, ask(apart, "embed", batch))
            assert not torch.equal(found, ask(bare, "embed", batch))
            if isinstance(protection, TopK):
                assert (unpack(found) == 0).sum() == 8 * 3

    def test_what_was_left_out_of_the_first_is_made_up_for_by_the_second(self) -> None:
        party, bare = protected(TopK(keep=0.5, feedback=True)), protected()
        both = {k: unpack(v) for k, v in ask(party, "embed_both", FIRST, SECOND).items()}
        plan = party.parts["train"].plan
        embedding = ask(bare, "embed", FIRST)
        left_out = torch.zeros(8, 6)
        left_out[plan.positions(0)] = embedding - both["first"]
        wanted = ask(bare, "embed", SECOND) + left_out[plan.positions(1)]
        is_sent = both["second"] != 0
        torch.testing.assert_close(both["second"][is_sent], wanted[is_sent])


def test_what_a_failed_call_encoded_is_not_charged_with_the_next() -> None:
    party, untroubled = protected(PERTURB), protected(PERTURB)
    failed = party.execute(Call(0, "a", "embed_and_fail", (FIRST,), 0, True))
    assert failed.failure is not None
    ask(party, "embed", SECOND)
    ask(untroubled, "embed", SECOND)
    assert ask(party, "privacy_spent") == ask(untroubled, "privacy_spent")


class TestRestored:
    def test_goes_on_counting_its_predictions(self) -> None:
        party = protected(PERTURB)
        first = ask(party, "infer", FIRST)
        kept = copy.deepcopy(party.state())
        second = ask(party, "infer", FIRST)
        # Noise is drawn anew for every prediction, so that it can't be averaged away unnoticed.
        assert not torch.equal(first, second)
        for other in (protected(PERTURB), party):
            other.restore(copy.deepcopy(kept))
            assert torch.equal(ask(other, "infer", FIRST), second)
            third = ask(other, "infer", FIRST)
            assert not torch.equal(third, second)
            assert not torch.equal(third, first)

    def test_without_protection_predictions_are_the_same(self) -> None:
        party = protected()
        first = ask(party, "infer", FIRST)
        assert torch.equal(ask(party, "infer", FIRST), first)
