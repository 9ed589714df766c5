"""Asynchronous training and VAFL against a slow loop that keeps plain dicts and counts delays one
by one, as equation (3) says; and the bound on delays over generated schedules."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from colonnade.core.errors import ConfigError, MissingBlock, ProtocolError
from colonnade.core.fabric import Fabric
from colonnade.core.federation import Federation, LoopState
from colonnade.core.messages import Batch, Call, Reply
from colonnade.core.method import Method
from colonnade.core.optimizers import OptimizerSpec
from colonnade.core.parties import Patience
from colonnade.fabrics.durations import Constant, Exponential, Uniform
from colonnade.fabrics.simulated import Profile
from colonnade.methods.asynchronous import Asynchronous
from colonnade.methods.splitnn import SplitNN
from colonnade.methods.vafl import VAFL
from colonnade.parts.embedding_table import EmbeddingTable
from federations import FABRICS, assert_bitwise_equal, make_federation, mlp, train, weights
from messages import says
from probes import Wrapped

LR = 0.3


class Watched(Wrapped):
    """Notes every call and every reply on its way."""

    def __init__(self, inner: Fabric) -> None:
        super().__init__(inner)
        self.parties = inner.parties  # type: ignore[attr-defined]
        self.calls: list[Call] = []
        self.replies: list[Reply] = []

    def send(self, call: Call) -> None:
        self.calls.append(call)
        self.inner.send(call)

    async def receive(self, deadline: int | None) -> Reply | None:
        reply = await self.inner.receive(deadline)
        if reply is not None:
            self.replies.append(reply)
        return reply

    def told(self, verb: str) -> list[Call]:
        return [call for call in self.calls if call.verb == verb]


def watched(federation: Federation) -> tuple[Federation, Watched]:
    fabric = Watched(federation.fabric)
    return Federation(federation.method, federation.holder, fabric, federation.patience), fabric


def speeds(**encode: int) -> dict[str, Profile]:
    return {
        name: Profile(encode=Constant(value=ticks), step=Constant(value=2), latency=Constant())
        for name, ticks in encode.items()
    }


class Loop:
    """Equations (2) to (4), one sample at a time: a table of vectors, a table of delays."""

    def __init__(self, federation: Federation, num_uploads: int = 1, num_steps: int = 1) -> None:
        parties = federation.fabric.parties
        self.names = sorted(parties)
        self.encoders = {name: copy.deepcopy(parties[name].encoder) for name in self.names}
        self.features = {name: parties[name].parts["train"].features for name in self.names}
        self.fusion = copy.deepcopy(federation.holder.fusion)
        self.targets = federation.holder.parts["train"].targets
        self.plan = federation.holder.parts["train"].plan
        self.num_steps = num_steps
        self.num_uploads = num_uploads
        self.rate = LR * num_uploads / len(self.names)
        samples = range(self.plan.num_samples)
        self.h = {
            (name, n): self.encoders[name](self.features[name][n : n + 1])[0].detach()
            for name in self.names
            for n in samples
        }
        self.tau = {(name, n): 1 for name in self.names for n in samples}
        self.num_delays: Counter[int] = Counter()
        self.used: list[dict[str, Tensor]] = []
        self.gradients: list[Tensor] = []

    def iteration(self, uploads: list[tuple[str, int]]) -> None:
        """One update after the uploads of some parties, each of a batch."""
        rows = {name: self.plan.positions(number).tolist() for name, number in uploads}
        for name, _ in uploads:
            fresh = self.encoders[name](self.features[name][rows[name]]).detach()
            for n, vector in zip(rows[name], fresh, strict=True):
                self.h[name, n] = vector
                self.tau[name, n] = 0
        batches = list(dict.fromkeys(number for _, number in uploads))
        fusion_gradients = [torch.zeros_like(item) for item in self.fusion.parameters()]
        num_rows = sum(len(self.plan.positions(number)) for number in batches)
        gradients = {}
        for number in batches:
            ns = self.plan.positions(number).tolist()
            uploaders = [name for name, uploaded in uploads if uploaded == number]
            embeddings = {
                name: torch.stack([self.h[name, n] for n in ns]).requires_grad_()
                for name in self.names
            }
            for name in self.names:
                if name not in uploaders:
                    self.num_delays.update(self.tau[name, n] for n in ns)
            self.used.append({name: item.detach().clone() for name, item in embeddings.items()})
            loss = functional.binary_cross_entropy_with_logits(
                self.fusion(embeddings), self.targets[ns]
            )
            found = torch.autograd.grad(
                loss, [*self.fusion.parameters(), *(embeddings[name] for name in uploaders)]
            )
            for total, gradient in zip(fusion_gradients, found, strict=False):
                # One mean over all the samples of the update.
                total += gradient * (len(ns) / num_rows)
            for name, gradient in zip(uploaders, found[len(fusion_gradients) :], strict=True):
                gradients[name] = gradient
        with torch.no_grad():
            for parameter, gradient in zip(self.fusion.parameters(), fusion_gradients, strict=True):
                parameter -= self.rate * gradient
        for name, _ in uploads:
            self.gradients.append(gradients[name])
            for _ in range(self.num_steps):
                h = self.encoders[name](self.features[name][rows[name]])
                own = torch.autograd.grad(h, [*self.encoders[name].parameters()], gradients[name])
                with torch.no_grad():
                    for parameter, gradient in zip(
                        self.encoders[name].parameters(), own, strict=True
                    ):
                        parameter -= LR * gradient
        # Equation (3).
        for name, n in self.tau:
            written = name in rows and n in rows[name]
            self.tau[name, n] = 1 if written else self.tau[name, n] + 1

    def weights(self) -> dict[str, Tensor]:
        networks = {f"{name}.encoder": net for name, net in self.encoders.items()}
        return {
            f"{owner}.{key}": value
            for owner, net in {**networks, "fusion": self.fusion}.items()
            for key, value in net.state_dict().items()
        }


PACES = {
    "equal": speeds(p0=5, p1=5, p2=5),
    "one slow": speeds(p0=3, p1=4, p2=31),
    "unsteady": {
        "p0": Profile(encode=Exponential(mean=9.0), latency=Uniform(low=0, high=7)),
        "p1": Profile(encode=Uniform(low=1, high=30), latency=Uniform(low=0, high=3)),
        "p2": Profile(encode=Exponential(mean=20.0, least=2)),
    },
}
CASES: Mapping[str, Method] = {
    "async": Asynchronous(),
    "async, three steps": Asynchronous(local_steps=3),
    "vafl": VAFL(),
    "vafl, shared batches": VAFL(batches="shared"),
    "vafl, two at a time": VAFL(num_uploads=2),
    "vafl, two at a time, shared batches": VAFL(num_uploads=2, batches="shared"),
}


def build(method: Method, **changes: Any) -> Federation:
    return make_federation(
        **{
            "num_parties": 3,
            "method": method,
            "fabric": "simulated",
            "dtype": torch.float64,
            "num_samples": 21,
            "batch_size": 4,
            "encoder": mlp(3, (4,), activation="tanh"),
            "optimizer": OptimizerSpec(name="sgd", lr=LR),
        }
        | changes
    )


class TestAgainstPlainTables:
    @pytest.mark.parametrize("fabric", FABRICS)
    @pytest.mark.parametrize("pace", PACES)
    @pytest.mark.parametrize("case", CASES)
    def test_embeddings_gradients_delays_and_weights(
        self, case: str, pace: str, fabric: str
    ) -> None:
        method = CASES[case]
        num_uploads = getattr(method, "num_uploads", 1)
        federation, fabric_ = watched(build(method, profiles=PACES[pace], fabric=fabric))
        loop = Loop(federation, num_uploads, getattr(method, "local_steps", 1))
        used = record_embeddings(federation)
        train(federation, 25)

        # Who uploaded which batch, in the order of arrival; every answer wants its gradient.
        asked = {call.id: call for call in fabric_.told("embed")}
        uploads = [
            (reply.party, asked[reply.id].arguments[0].number)
            for reply in fabric_.replies
            if reply.id in asked
        ]
        assert len(uploads) >= 25 * num_uploads
        for number in range(25):
            loop.iteration(uploads[number * num_uploads : (number + 1) * num_uploads])

        assert len(used) == len(loop.used)
        for found, expected in zip(used, loop.used, strict=True):
            assert_close(found, expected)
        answers = fabric_.told("descend")
        assert [call.party for call in answers] == [name for name, _ in uploads[: len(answers)]]
        assert len(answers) == len(loop.gradients) == 25 * num_uploads
        for call, gradient in zip(answers, loop.gradients, strict=True):
            torch.testing.assert_close(call.arguments[1], gradient, atol=1e-10, rtol=0.0)
        assert federation.method.findings(federation.holder) == {
            "delays": dict(sorted(loop.num_delays.items()))
        }
        assert_close(weights(federation), loop.weights())

    def test_delays_by_hand(self) -> None:
        # Two parties, one batch of all 6 samples, uploads in turn. Iteration 0: the other's entry
        # is the initial one, delay 1. From then on: what the other wrote one iteration ago, 1.
        federation = build(
            Asynchronous(), num_parties=2, num_samples=6, batch_size=6, profiles=speeds(p0=5, p1=5)
        )
        train(federation, 5)
        assert federation.method.findings(federation.holder) == {"delays": {1: 30}}

    def test_delays_by_hand_with_one_slow_party(self) -> None:
        # p0 answers every 5 + 2 ticks, p1 once in 23. Initial upload: both by 23. p0 uploads at
        # 28, 35, 42 and p1 at 46: iterations 0, 1, 2 use p1's initial entry at delays 1, 2, 3, and
        # iteration 3, p1's, uses p0's of iteration 2 at delay 1. Six samples each.
        federation = build(
            Asynchronous(), num_parties=2, num_samples=6, batch_size=6, profiles=speeds(p0=5, p1=23)
        )
        train(federation, 4)
        assert federation.fabric.now() == 46
        assert federation.method.findings(federation.holder) == {"delays": {1: 12, 2: 6, 3: 6}}


def record_embeddings(federation: Federation) -> list[dict[str, Tensor]]:
    """What each gradient is computed from, batch by batch."""
    found: list[dict[str, Tensor]] = []
    gradients = federation.holder.gradients
    sizes = federation.holder.parts["train"].plan

    def recording(
        embeddings: Mapping[str, Tensor], *batches: Batch, places: Tensor | None = None
    ) -> dict[str, Tensor]:
        start = 0
        for batch in batches:
            stop = start + len(sizes.positions(batch.number))
            found.append({name: item[start:stop].clone() for name, item in embeddings.items()})
            start = stop
        return gradients(embeddings, *batches, places=places)

    federation.holder.gradients = recording  # type: ignore[method-assign]
    return found


def assert_close(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, atol=1e-10, rtol=0.0, msg=key)


class TestLabelHolder:
    @pytest.mark.parametrize(
        ("method", "factor"),
        [
            (Asynchronous(), 1 / 4),
            (VAFL(), 1 / 4),
            (VAFL(num_uploads=3), 3 / 4),
            (VAFL(num_uploads=4), 1.0),
        ],
    )
    @pytest.mark.parametrize("fabric", FABRICS)
    def test_learning_rate_is_divided_by_the_number_of_parties(
        self, fabric: str, method: Method, factor: float
    ) -> None:
        federation = build(method, num_parties=4, fabric=fabric)
        train(federation, 3)
        assert federation.holder.optimizer.param_groups[0]["lr"] == pytest.approx(LR * factor)
        for party in federation.fabric.parties.values():
            assert party.optimizer.param_groups[0]["lr"] == LR

    @pytest.mark.parametrize("method", [Asynchronous(), VAFL()])
    def test_only_the_uploader_gets_a_gradient_and_moves(self, method: Method) -> None:
        federation, fabric = watched(build(method, profiles=PACES["one slow"]))
        state = LoopState()
        for stop in range(1, 12):
            before = weights(federation)
            num_told = len(fabric.told("descend"))
            train(federation, stop, state)
            state.stopped_by = ""
            (answer,) = fabric.told("descend")[num_told:]
            after = weights(federation)
            moved = {key.split(".")[0] for key in after if not torch.equal(before[key], after[key])}
            assert moved == {answer.party, "fusion"}

    def test_table_starts_with_one_upload_of_every_sample(self) -> None:
        federation, fabric = watched(build(VAFL()))
        train(federation, 1)
        asked = [(call.party, call.arguments[0].number) for call in fabric.told("refresh")]
        # 21 samples in batches of 4 at most: 6 batches.
        assert asked == [(name, number) for number in range(6) for name in ("p0", "p1", "p2")]


class TestSynchronousLimit:
    @pytest.mark.parametrize("fabric", FABRICS)
    @pytest.mark.parametrize("combine", ["concat", "mean"])
    @pytest.mark.parametrize("optimizer", ["sgd", "adam"])
    @pytest.mark.parametrize("num_parties", [1, 2, 5])
    def test_all_uploads_of_one_shared_batch_are_splitnn_bit_for_bit(
        self, num_parties: int, optimizer: str, combine: str, fabric: str
    ) -> None:
        settings = {
            "num_parties": num_parties,
            "fabric": fabric,
            "combine": combine,
            "optimizer": OptimizerSpec(name=optimizer, lr=0.05),
            "dtype": torch.float32,
            "default_profile": Profile(
                encode=Uniform(low=1, high=40), latency=Uniform(low=0, high=20)
            ),
        }
        together = build(VAFL(num_uploads=num_parties, batches="shared"), **settings)
        plain = build(SplitNN(), **settings)
        losses = [[event.loss for event in train(item, 13)] for item in (together, plain)]

        assert losses[0] == losses[1]
        assert_bitwise_equal(weights(together), weights(plain))
        assert together.method.findings(together.holder) == {"delays": {}}

    def test_too_many_uploads_are_refused_before_training(self) -> None:
        with pytest.raises(ConfigError, match=says("method.num_uploads", 4, 3)):
            train(build(VAFL(num_uploads=4)), 1)


class Ages:
    """Wraps an EmbeddingTable's reads and the label holder's gradients: how old was what they used?

    Ages are counted here, sample by sample, from the writes that were seen.
    """

    def __init__(self, federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
        self.oldest = 0
        self.num_read = 0
        self.num_gradients = 0
        self.iteration = 0
        self.written: dict[tuple[str, int], int] = {}
        self.plan = federation.holder.parts["train"].plan
        self.rows: dict[tuple[str, int], Tensor] = {}
        store, read, advance = EmbeddingTable._store, EmbeddingTable.read, EmbeddingTable.advance

        def storing(table: Any, party: str, batch: Batch, embedding: Tensor, at: int) -> None:
            for n, row in zip(self.plan.positions(batch.number).tolist(), embedding, strict=True):
                self.written[party, n] = at
                self.rows[party, n] = row.clone()
            store(table, party, batch, embedding, at)

        def reading(table: Any, batch: Batch, parties: Any, *, fresh: Any) -> dict[str, Tensor]:
            found = read(table, batch, parties, fresh=fresh)
            for name, rows in found.items():
                for n, row in zip(self.plan.positions(batch.number).tolist(), rows, strict=True):
                    assert torch.equal(row, self.rows[name, n])
                    self.num_read += 1
            return found

        def advancing(table: Any) -> None:
            self.iteration += 1
            advance(table)

        monkeypatch.setattr(EmbeddingTable, "_store", storing)
        monkeypatch.setattr(EmbeddingTable, "read", reading)
        monkeypatch.setattr(EmbeddingTable, "advance", advancing)
        gradients = federation.holder.gradients

        def learning(
            embeddings: Mapping[str, Tensor], *batches: Batch, places: Tensor | None = None
        ) -> dict[str, Tensor]:
            self.num_gradients += 1
            for batch in batches:
                for n in self.plan.positions(batch.number).tolist():
                    for name in embeddings:
                        age = self.iteration - self.written[name, n]
                        self.oldest = max(self.oldest, age)
            return gradients(embeddings, *batches, places=places)

        monkeypatch.setattr(federation.holder, "gradients", learning)


durations = st.one_of(
    st.integers(0, 60).map(lambda value: Constant(value=value)),
    st.integers(1, 60).map(lambda mean: Exponential(mean=float(mean))),
    st.integers(0, 40).map(lambda high: Uniform(low=0, high=high)),
)
profiles = st.builds(
    lambda encode, latency, step: Profile(encode=encode, latency=latency, step=step),
    durations,
    durations,
    durations,
)


class TestBoundedDelay:
    @settings(max_examples=30)
    @given(data=st.data())
    def test_no_gradient_comes_from_an_entry_older_than_the_bound(
        self, data: st.DataObject
    ) -> None:
        num_parties = data.draw(st.integers(2, 4), "parties")
        bound = data.draw(st.integers(1, 12), "D")
        method = VAFL(
            max_delay=bound,
            num_uploads=data.draw(st.integers(1, num_parties), "t"),
            batches=data.draw(st.sampled_from(["own", "shared"]), "batches"),
        )
        federation, _ = watched(
            build(
                method,
                num_parties=num_parties,
                num_samples=data.draw(st.integers(2, 20), "samples"),
                profiles={f"p{k}": data.draw(profiles, f"p{k}") for k in range(num_parties)},
                fabric_seed=data.draw(st.integers(0, 100), "seed"),
            )
        )
        with pytest.MonkeyPatch.context() as monkeypatch:
            ages = Ages(federation, monkeypatch)
            train(federation, 30)

        assert ages.num_gradients == 30
        assert ages.num_read > 0
        assert ages.oldest <= bound
        delays = method.findings(federation.holder)["delays"]
        assert max(delays, default=0) <= bound

    def test_fresh_embeddings_are_really_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        slow = speeds(p0=3, p1=4, p2=200)
        free, _ = watched(build(VAFL(), profiles=slow))
        ages = Ages(free, monkeypatch)
        train(free, 60)
        assert ages.oldest > 20
        monkeypatch.undo()

        bounded, fabric = watched(build(VAFL(max_delay=20), profiles=slow))
        ages = Ages(bounded, monkeypatch)
        train(bounded, 60)
        refreshed = fabric.told("refresh")[3 * 5 :]
        assert ages.oldest == 20
        assert {call.party for call in refreshed} >= {"p2"}
        # Being asked costs time: p2 answers in the order of the calls.
        assert bounded.fabric.now() > free.fabric.now()

    def test_who_does_not_freshen_in_time_is_left_out(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # p2 takes 200 ticks for whatever it is asked; the others wait for 50 at most.
        slow = speeds(p0=3, p1=4, p2=200)
        federation, _ = watched(
            build(
                VAFL(max_delay=6),
                profiles=slow,
                combine="mean",
                patience=Patience(timeout=5000, then="continue"),
            )
        )
        ages = Ages(federation, monkeypatch)
        train(federation, 1)
        federation.parties._patience = Patience(timeout=50, then="continue")
        used = record_embeddings(federation)
        # Long enough for its late answer to come: it is not waited for a second time.
        train(federation, 80, LoopState(exchange=1))

        assert ages.oldest <= 6
        assert {"p0", "p1"} in [set(item) for item in used]
        assert federation.parties.num_dropped > 0

    def test_where_nobody_may_be_left_out_it_is_an_error(self) -> None:
        federation = build(
            VAFL(max_delay=6),
            profiles=speeds(p0=3, p1=4, p2=200),
            patience=Patience(timeout=5000, then="continue"),
        )
        train(federation, 1)
        federation.parties._patience = Patience(timeout=50, then="continue")
        with pytest.raises(MissingBlock, match=says("'concat'", "p2")):
            train(federation, 30, LoopState(exchange=1))


class TestTable:
    def table(self) -> tuple[EmbeddingTable, Federation]:
        federation = build(SplitNN(), num_samples=8, batch_size=4)
        return EmbeddingTable(federation.holder), federation

    def test_delay_counts_iterations_since_the_writing(self) -> None:
        table, _ = self.table()
        first, second = Batch("train", 0), Batch("train", 1)
        table.write("p0", first, torch.ones(4, 3))
        assert table.delay("p0", first) == 0
        table.advance()
        table.write("p0", second, torch.ones(4, 3))
        assert (table.delay("p0", first), table.delay("p0", second)) == (1, 0)
        table.advance()
        assert (table.delay("p0", first), table.delay("p0", second)) == (2, 1)

    def test_what_was_never_sent_is_absent_not_zero(self) -> None:
        table, _ = self.table()
        first, second = Batch("train", 0), Batch("train", 1)
        table.write("p0", first, torch.ones(4, 3))
        assert table.knows("p0", first)
        assert not table.knows("p0", second)
        assert not table.knows("p1", first)
        assert table.read(first, ["p0", "p1"], fresh=()).keys() == {"p0"}
        assert table.read(second, ["p0", "p1"], fresh=()) == {}
        assert table.delays() == {0: 4}

    @pytest.mark.parametrize("shape", [(1, 3), (3, 3), (5, 3), (4, 2), (4, 3, 1)])
    def test_embedding_of_another_shape_is_refused(self, shape: tuple[int, ...]) -> None:
        table, _ = self.table()
        table.write("p0", Batch("train", 0), torch.ones(4, 3))
        with pytest.raises(ProtocolError, match=says("'p0'", "(4, 3)")):
            table.write("p0", Batch("train", 1), torch.ones(shape))

    def test_is_part_of_the_label_holders_memory(self) -> None:
        table, federation = self.table()
        table.write("p0", Batch("train", 0), torch.ones(4, 3))
        table.advance()
        again = EmbeddingTable(federation.holder)
        assert again.iteration == 1
        assert torch.equal(again.read(Batch("train", 0), ["p0"], fresh=())["p0"], torch.ones(4, 3))
