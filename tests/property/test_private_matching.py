"""Private matching against a plain outer join, and what its messages give away."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from colonnade.align import blinding, group, lists, matching, participant, telling
from colonnade.align.counting import MemoryCount
from colonnade.align.files import PartyAlignment, check_together
from colonnade.align.ids import prepare_ids
from colonnade.align.job import NUM_CHECKS
from colonnade.align.lists import PointLists
from colonnade.align.matching import Overlap, match
from colonnade.align.participant import AlignParty
from colonnade.align.places import DirectoryPlace, MemoryPlace
from colonnade.align.record import load_record, save_record
from colonnade.align.rules import KeyPart
from colonnade.align.terms import AlignPolicy, AlignSpec
from colonnade.cli.aligning import align
from colonnade.core.errors import ConfigError, PartyFailed, ProtocolError
from colonnade.core.messages import Call, Reply
from colonnade.core.parties import Parties
from colonnade.fabrics.durations import Uniform
from colonnade.fabrics.local import InProcess
from colonnade.fabrics.simulated import Profile, Simulated
from probes import Wrapped

SALT = "a salt of this federation only"
MODES = ("intersection", "union")
KEY = (KeyPart(rules=("nfkc", "trim", "case")),)


class Federation:
    """Participants with their ids, on a fabric; ``holder`` has the labels."""

    def __init__(
        self,
        ids: Mapping[str, Sequence[str]],
        *,
        fabric: str = "in_process",
        own: bool = True,
        holder: str | None = None,
        places: Mapping[str, Any] | None = None,
        counts: Mapping[str, Any] | None = None,
        policy: AlignPolicy | None = None,
        wrap: Any = None,
        salts: Mapping[str, str] | None = None,
        **terms: Any,
    ) -> None:
        self.ids = {name: list(items) for name, items in ids.items()}
        self.holder = holder or min(ids)
        self.spec = AlignSpec(salt=SALT, key=KEY, duplicates="keep_first", **terms)
        self.everyone = {
            name: AlignParty(
                name=name,
                ids=prepare_ids([items], KEY, where=name, duplicates="keep_first"),
                spec=replace(self.spec, salt=(salts or {}).get(name, SALT)),
                policy=policy,
                place=(places or {}).get(name),
                count=(counts or {}).get(name),
                today=lambda: 1000,
            )
            for name, items in self.ids.items()
        }
        parties = dict(self.everyone)
        self.own = parties.pop(self.holder) if own else None
        if fabric == "in_process":
            self.fabric: Any = InProcess(parties)
        else:
            slow = Profile(latency=Uniform(low=0, high=50), bandwidth=1000)
            self.fabric = Simulated(parties, default=slow, seed=3)
        if wrap is not None:
            self.fabric = wrap(self.fabric)

    def match(self, **settings: Any) -> Overlap:
        return self.fabric.run(
            match(
                Parties(self.fabric),
                spec=self.spec,
                own=self.own,
                label_holder=None if self.own else self.holder,
                **settings,
            )
        )

    @property
    def alignments(self) -> dict[str, PartyAlignment]:
        return {name: party.alignment for name, party in self.everyone.items()}


def plain_join(
    ids: Mapping[str, Sequence[str]], holder: str, *, mode: str, labelled_only: bool, own: bool
) -> pd.DataFrame:
    """The oracle: an outer join on normalised ids; one row per sample, own rows as columns."""
    tables = []
    for name in sorted(ids):
        keys = [KEY[0].apply(text) for text in ids[name]]
        table = pd.DataFrame({"id": keys, name: np.arange(len(keys))}).astype({"id": object})
        tables.append(table.drop_duplicates("id"))
    joined = tables[0]
    for table in tables[1:]:
        joined = joined.merge(table, on="id", how="outer")
    needed = set()
    if labelled_only:
        needed.add(holder)
    if mode == "intersection":
        needed |= set(ids) - ({holder} if own else set()) | ({holder} if labelled_only else set())
    return joined.dropna(subset=sorted(needed)).set_index("id")


def assert_equals_plain_join(federation: Federation, overlap: Overlap) -> None:
    spec, names = federation.spec, sorted(federation.ids)
    expected = plain_join(
        federation.ids,
        federation.holder,
        mode=spec.mode,
        labelled_only=spec.labelled_only,
        own=federation.own is not None,
    )
    assert overlap.num_samples == len(expected)
    found: dict[int, dict[str, float]] = {number: {} for number in range(len(expected))}
    ids_of: dict[int, set[str]] = {number: set() for number in found}
    for name, alignment in federation.alignments.items():
        assert alignment.digest == overlap.digest
        assert alignment.names == tuple(names)
        for number, row in zip(alignment.numbers.tolist(), alignment.rows.tolist(), strict=True):
            found[number][name] = float(row)
            ids_of[number].add(KEY[0].apply(federation.ids[name][row]))
        present = alignment.presence
        assert present.shape == (len(expected), len(names))
    assert all(len(ids) == 1 for ids in ids_of.values())
    rows = {
        next(iter(ids_of[number])): {name: found[number].get(name) for name in names}
        for number in found
    }
    assert rows.keys() == set(expected.index)
    for key, row in rows.items():
        for name in names:
            value = expected.loc[key, name]
            assert row[name] == (None if pd.isna(value) else value)
    table = next(iter(federation.alignments.values())).presence
    for number, row in found.items():
        assert {name for place, name in enumerate(names) if table[number, place]} == row.keys()
    # The pattern that the label holder reports is the outer join's, over all samples.
    everything = plain_join(
        federation.ids, federation.holder, mode="union", labelled_only=False, own=True
    )
    patterns: dict[tuple[str, ...], int] = {}
    for _, series in everything.iterrows():
        kind = tuple(name for name in names if not pd.isna(series[name]))
        patterns[kind] = patterns.get(kind, 0) + 1
    assert dict(overlap.combinations) == patterns
    assert overlap.sizes == {
        name: len({KEY[0].apply(text) for text in items}) for name, items in federation.ids.items()
    }


TEXTS = st.sampled_from(
    [
        "7",
        "007",
        "Ada",
        " ada ",
        "ADA",
        "Åse",
        "A\u030ase",
        "名前",
        "ﬁn",
        "fin",
        "Straße",
        "STRASSE",
    ]
    + [f"id-{number}" for number in range(6)]
)
LISTS = st.dictionaries(
    st.sampled_from(["bank", "shop", "telco", "été", "P 5", "z"]),
    st.lists(TEXTS, max_size=8),
    min_size=2,
    max_size=6,
)


@pytest.mark.parametrize("fabric", ["in_process", "simulated"])
@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=8)
@given(ids=LISTS, labelled_only=st.booleans(), own=st.booleans())
@example(ids={"a": ["x"], "b": ["y"], "c": ["z"]}, labelled_only=False, own=True)
@example(ids={"a": [], "b": ["y"], "c": ["y"]}, labelled_only=True, own=True)
@example(ids={"a": ["y", "w"], "b": [], "c": ["y"]}, labelled_only=False, own=True)
@example(ids={"a": [], "b": []}, labelled_only=False, own=True)
@example(
    ids={"a": ["v"], "b": [*"uvwxy"], "c": ["v", "w"], "d": ["u"]}, labelled_only=False, own=False
)
def test_equals_a_plain_outer_join(mode, fabric, ids, labelled_only, own):
    federation = Federation(ids, fabric=fabric, own=own, mode=mode, labelled_only=labelled_only)
    assert_equals_plain_join(federation, federation.match())


@pytest.mark.parametrize("num_parties", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("mode", MODES)
def test_equals_a_plain_outer_join_over_several_chunks(num_parties, mode, small_chunks):
    numbers = np.random.default_rng(num_parties)
    ids = {
        f"p{party}": [f"{item}" for item in numbers.choice(60, size=size, replace=False)]
        for party, size in enumerate([45, 30, 1, 40, 20, 33][:num_parties])
    }
    ids["p2"] = [str(item) for item in range(60)]  # one has all
    federation = Federation(ids, mode=mode, labelled_only=True, holder="p1")
    seen: list[tuple[int, int]] = []
    overlap = federation.match(progress=lambda done, total: seen.append((done, total)))
    assert_equals_plain_join(federation, overlap)
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks so small that short lists take several."""
    for module in (blinding, group, lists, matching, participant):
        monkeypatch.setattr(module, "CHUNK", 16, raising=True)
    monkeypatch.setattr(telling, "_NUMBERS_CHUNK", 7)


class Recording(Wrapped):
    """Every call and reply that crosses a link, as tensors and bytes."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.calls: list[Call] = []
        self.replies: list[Reply] = []

    def send(self, call: Call) -> None:
        self.calls.append(call)
        super().send(call)

    async def receive(self, deadline: int | None) -> Reply | None:
        reply = await super().receive(deadline)
        if reply is not None:
            self.replies.append(reply)
        return reply

    def tensors(self) -> list[Tensor]:
        values: list[Any] = [item for call in self.calls for item in call.arguments]
        for reply in self.replies:
            values += reply.value.values() if isinstance(reply.value, dict) else [reply.value]
        return [item for item in values if isinstance(item, Tensor)]

    def transcript(self) -> bytes:
        texts = [
            str(item) for call in self.calls for item in call.arguments if not torch.is_tensor(item)
        ]
        return b"|".join(
            [*(item.numpy().tobytes() for item in self.tensors()), *(t.encode() for t in texts)]
        )

    def rows(self) -> set[bytes]:
        return {
            row.tobytes()
            for item in self.tensors()
            if item.dtype == torch.uint8
            for row in item.numpy().reshape(-1, 32)
        }


PEOPLE = {
    "bank": ["Ada Lovelace", "Grace Hopper", "Émilie du Châtelet", "Mary Somerville"],
    "shop": ["grace hopper", "Sofya Kovalevskaya", "ada lovelace"],
    "telco": [" ADA  LOVELACE", "Emmy Noether", "Grace Hopper", "Sofya Kovalevskaya"],
}


@pytest.mark.parametrize("mode", MODES)
def test_no_id_and_no_unkeyed_hash_of_one_is_ever_sent(mode):
    federation = Federation(PEOPLE, wrap=Recording, mode=mode)
    federation.match()
    transcript = federation.fabric.transcript()
    assert len(transcript) > 2000
    texts = {text for items in PEOPLE.values() for text in items}
    texts |= {KEY[0].apply(text) for text in texts}
    import rbcl

    for text in texts:
        raw = text.encode()
        assert raw not in transcript
        for prefix in (b"", SALT.encode(), b"id\0", SALT.encode() + b"id\0"):
            for kind in ("md5", "sha1", "sha256", "sha512", "blake2b", "sha3_256"):
                digest = hashlib.new(kind, prefix + raw).digest()
                assert digest[:16] not in transcript
                assert digest.hex()[:32].encode() not in transcript
            wide = hashlib.sha512(prefix + raw).digest()
            assert rbcl.crypto_core_ristretto255_from_hash(wide)[:16] not in transcript
        # Hashed to the group under the salt, but not blinded.
        keyed = group.hash_and_multiply(
            [b"id\0" + raw], SALT.encode(), (1).to_bytes(32, "little")
        ).tobytes()
        assert keyed[:16] not in transcript
    assert SALT.encode() not in transcript


@pytest.mark.parametrize("mode", MODES)
def test_two_runs_share_no_message(mode):
    runs = [Federation(PEOPLE, wrap=Recording, mode=mode) for _ in range(2)]
    for federation in runs:
        federation.match()
    first, second = (federation.fabric.rows() for federation in runs)
    assert first
    assert second
    assert not first & second
    assert runs[0].alignments["bank"].digest != runs[1].alignments["bank"].digest


def test_no_party_ever_sees_two_lists_that_can_be_compared():
    """Whatever a party gets or computes, no value of one list is a value of another's."""
    ids = {name: ["same", "ids", "everywhere"] for name in "abcd"}
    federation = Federation(ids, wrap=Recording, mode="intersection", holder="a")
    federation.match()
    for party in "bcd":
        scalar = federation.everyone[party]
        state = scalar.place.load_state()
        factor = group.derive_scalar(state.secret, "scalar")
        lists: list[set[bytes]] = []
        for call in federation.fabric.calls:
            if call.party == party and call.verb in ("blind", "absorb"):
                points = call.arguments[3].numpy()
                made = group.multiply(points, factor)
                lists.append({row.tobytes() for row in np.concatenate([points, made])})
        own = [
            reply.value["content"].numpy()
            for reply, call in _answered(federation.fabric)
            if call.party == party and call.verb == "offer"
        ]
        lists += [{row.tobytes() for row in points} for points in own]
        assert len(lists) == 4
        assert len(set.union(*lists)) == sum(map(len, lists))


def _answered(fabric: Recording) -> list[tuple[Reply, Call]]:
    calls = {call.id: call for call in fabric.calls}
    return [(reply, calls[reply.id]) for reply in fabric.replies if reply.id in calls]


def test_in_the_intersection_the_label_holder_can_not_follow_its_own_ids():
    """Its list comes back in an order that it does not know; in the union it may know it."""
    ids = {"a": [str(item) for item in range(40)], "b": ["1", "2"], "c": ["2", "3"]}
    moved = {}
    for mode in MODES:
        federation = Federation(ids, wrap=Recording, mode=mode, holder="a")
        federation.match()
        factor = group.derive_scalar(federation.everyone["b"].place.load_state().secret, "scalar")
        (sent,) = [
            call.arguments[3].numpy()
            for call in federation.fabric.calls
            if call.party == "b" and call.verb in ("blind", "absorb") and call.arguments[0] == "a"
        ]
        (back,) = [
            reply.value["content"].numpy()
            for reply, call in _answered(federation.fabric)
            if call.party == "b" and call.verb in ("blind", "release") and call.arguments[0] == "a"
        ]
        straight = group.multiply(sent, factor)
        assert {row.tobytes() for row in straight} == {row.tobytes() for row in back}
        moved[mode] = int((straight != back).any(axis=1).sum())
    assert moved["union"] == 0
    assert moved["intersection"] > 30


class Meddling(Wrapped):
    """Changes the replies to one verb: cuts, permutes, repeats or replaces."""

    def __init__(self, inner: Any, verb: str, how: str) -> None:
        super().__init__(inner)
        self.verb, self.how = verb, how
        self.verbs: dict[int, str] = {}

    def send(self, call: Call) -> None:
        self.verbs[call.id] = call.verb
        super().send(call)

    async def receive(self, deadline: int | None) -> Reply | None:
        reply = await super().receive(deadline)
        if reply is None or self.verbs[reply.id] != self.verb or reply.failure is not None:
            return reply
        value = dict(reply.value)
        content = value["content"]
        value["content"] = {
            "cut": lambda: content[:-1],
            "permuted": lambda: content.flip(0),
            "swapped": lambda: content[[1, 0, *range(2, len(content))]],
            "repeated": lambda: torch.cat([content[:1], content[:1], content[2:]]),
            "longer": lambda: torch.cat([content, content[:1]]),
        }[self.how]()
        return replace(reply, value=value)


@pytest.mark.parametrize("how", ["cut", "permuted", "swapped", "repeated", "longer"])
@pytest.mark.parametrize("verb", ["offer", "blind", "release", "locate", "trace"])
def test_a_permuted_or_truncated_reply_is_detected(verb, how):
    federation = Federation(
        PEOPLE,
        wrap=lambda inner: Meddling(inner, verb, how),
        mode="intersection",
    )
    with pytest.raises(ProtocolError, match=r"party '(shop|telco)'.*(cut|permuted)"):
        federation.match()
    assert all(party.alignment is None for party in federation.everyone.values())


class Rearranging(AlignParty):
    """A party with a fault of its own: it seals what it has already mixed up."""

    fault = "order"

    def _multiplied(self, owner, hop, start, points, seal):
        product = super()._multiplied(owner, hop, start, points, seal)
        if self.fault == "order":
            return product[::-1]
        return group.multiply(product, group.derive_scalar(b"another key", "scalar"))


Rearranging.verbs = AlignParty.verbs


@pytest.mark.parametrize("fault", ["order", "key"])
def test_a_party_that_mixes_up_an_order_or_its_key_is_detected(fault, monkeypatch):
    monkeypatch.setattr(Rearranging, "fault", fault)
    ids = {name: [f"{name}{item}" for item in range(20)] for name in "abc"}
    federation = Federation(ids, mode="union")
    federation.everyone["b"].__class__ = Rearranging
    with pytest.raises(ProtocolError, match=r"check points of .* don't meet"):
        federation.match()


def test_other_terms_are_found_before_anything_is_sent():
    federation = Federation(
        PEOPLE, wrap=Recording, salts={"telco": "the salt of another federation"}
    )
    with pytest.raises(PartyFailed, match="party 'telco' has other terms"):
        federation.match()
    assert {call.verb for call in federation.fabric.calls} <= {"terms", "enter"}


def test_a_party_refuses_what_its_policy_does_not_allow():
    counts = {name: MemoryCount() for name in PEOPLE}
    policy = AlignPolicy(max_alignments=1)
    Federation(PEOPLE, counts=counts, policy=policy).match()
    with pytest.raises(PartyFailed, match="allows 1 alignments in 30 days"):
        Federation(PEOPLE, counts=counts, policy=policy).match()
    with pytest.raises(PartyFailed, match="allows lists of 3 ids"):
        Federation(PEOPLE, policy=AlignPolicy(max_ids=3)).match()


def test_a_place_in_a_list_is_blinded_for_one_content_only():
    federation = Federation(PEOPLE, wrap=Recording)
    federation.match()
    again = Federation(PEOPLE)
    party = again.everyone["shop"]
    sizes = {name: float(len(items) + NUM_CHECKS) for name, items in PEOPLE.items()}
    tag = party._terms("run", 0)
    assert party.enter("run", 0, torch.from_numpy(np.array(tag)), False) == 11
    party.admit(sizes, "bank")

    def blind(number: int, start: int = 0) -> None:
        points = group.hash_and_multiply([str(number).encode()], b"x", (3).to_bytes(32, "little"))
        seal = participant.make_seal("run", 0, "bank", 0, start, points)
        party.blind("bank", 1, start, torch.from_numpy(np.array(points)), _bytes(seal))

    with pytest.raises(ProtocolError, match="told once"):
        party.admit({**sizes, "another": 1e6}, "bank")
    blind(1)
    blind(1)
    with pytest.raises(ProtocolError, match="has blinded that part of 'bank' already"):
        blind(2)
    with pytest.raises(ProtocolError, match="asked to blind ids 5 to 6"):
        blind(3, start=5)


def test_a_party_keeps_the_label_holder_from_following_its_list():
    party = Federation(PEOPLE, mode="intersection").everyone["shop"]
    party.enter("run", 0, _bytes(party._terms("run", 0).tobytes()), False)
    party.admit(dict.fromkeys(PEOPLE, 20.0), "bank")
    points = group.hash_and_multiply([b"x"], b"x", (3).to_bytes(32, "little"))
    arguments = (torch.from_numpy(np.array(points)), _bytes(b""))
    with pytest.raises(ProtocolError, match="must not follow its own list"):
        party.blind("bank", 1, 0, *arguments)
    with pytest.raises(ProtocolError, match="the label holder's list only"):
        party.absorb("telco", 1, 0, *arguments)
    places = np.array([99])
    seal = participant.make_seal("run", 0, "bank", -3, 0, places)
    with pytest.raises(ProtocolError, match="outside a list of 20"):
        party.trace(0, 1, 0, torch.from_numpy(places), _bytes(seal))


def _bytes(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("labelled_only", [True, False])
def test_an_extension_keeps_earlier_numbers_and_equals_a_join_of_everything(
    mode, labelled_only, tmp_path
):
    before = {"a": ["1", "2", "3", "9"], "b": ["2", "3", "4"], "c": ["3", "4", "9"]}
    # New ids, ids that others have had all along, and rows in another order.
    after = {"a": ["5", "4", "9", "3", "2", "1"], "b": ["9", "5", "4", "3", "2"]}
    after["c"] = ["2", "3", "4", "9", "5", "6"]
    later = {"a": ["6", *after["a"]], "b": [*after["b"], "6"], "c": after["c"]}
    terms = {"mode": mode, "labelled_only": labelled_only, "holder": "a"}

    def federation(ids):
        places = {name: DirectoryPlace(tmp_path / name) for name in ids}
        return Federation(ids, places=places, wrap=Recording, **terms)

    first = federation(before)
    overlap = first.match()
    assert_equals_plain_join(first, overlap)
    numbers = _numbers(first)
    offered = _offered(first.fabric)
    for ids in (after, later):
        save_record(overlap.record, tmp_path / "record.npz")
        extended = federation(ids)
        overlap = extended.match(extend=load_record(tmp_path / "record.npz"))
        assert_equals_plain_join(extended, overlap)
        now = _numbers(extended)
        assert numbers.items() <= now.items()
        numbers = now
        # Only new ids travel.
        sent = [call for call in extended.fabric.calls if call.verb == "offer"]
        counts = {call.party: call.arguments[1] - NUM_CHECKS for call in sent}
        assert counts == ({"b": 2, "c": 3} if ids is after else {"b": 1, "c": 0})
        fresh = _offered(extended.fabric)
        assert not offered & fresh
        offered |= fresh
    assert PartyAlignment.load(tmp_path / "b" / "alignment.npz").digest == overlap.digest


def _offered(fabric: Recording) -> set[bytes]:
    return {
        row.tobytes()
        for reply, call in _answered(fabric)
        if call.verb == "offer"
        for row in reply.value["content"].numpy()
    }


def _numbers(federation: Federation) -> dict[tuple[str, str], int]:
    return {
        (name, federation.ids[name][row]): number
        for name, item in federation.alignments.items()
        for number, row in zip(item.numbers.tolist(), item.rows.tolist(), strict=True)
    }


def test_an_extension_only_adds_and_is_between_the_same(tmp_path):
    places = {name: MemoryPlace() for name in PEOPLE}
    record = Federation(PEOPLE, places=places).match().record
    fewer = {**PEOPLE, "shop": PEOPLE["shop"][1:]}
    with pytest.raises(PartyFailed, match="1 ids of the earlier alignment are no longer"):
        Federation(fewer, places=places).match(extend=record)
    with pytest.raises(ConfigError, match="the earlier alignment was between"):
        Federation({**PEOPLE, "new": ["x"]}, places=places).match(extend=record)
    with pytest.raises(PartyFailed, match="does not have the alignment"):
        Federation(PEOPLE).match(extend=record)


class Stopping(Wrapped):
    """The connection breaks after so many calls."""

    def __init__(self, inner: Any, after: int) -> None:
        super().__init__(inner)
        self.after = after

    def send(self, call: Call) -> None:
        self.after -= 1
        if self.after < 0:
            raise KeyboardInterrupt
        super().send(call)


@pytest.mark.parametrize("mode", MODES)
def test_an_interrupted_alignment_goes_on_where_it_was(mode, small_chunks, tmp_path):
    ids = {
        name: [str(item) for item in range(start, start + 40)]
        for name, start in (("a", 0), ("b", 10), ("c", 20))
    }
    places = {name: DirectoryPlace(tmp_path / name) for name in ids}
    lists = tmp_path / "lists"
    policy = AlignPolicy(max_alignments=100)
    terms: dict[str, Any] = {"places": places, "mode": mode, "holder": "a", "policy": policy}

    whole = Federation(ids, wrap=Recording, mode=mode, holder="a")
    whole.match()
    num_calls = len(whole.fabric.calls)

    broken = Federation(ids, wrap=lambda inner: Stopping(inner, 9), **terms)
    with pytest.raises(KeyboardInterrupt):
        broken.match(lists=PointLists(lists))
    done = 9
    while True:
        federation = Federation(
            ids, wrap=lambda inner, after=done: Recording(Stopping(inner, after)), **terms
        )
        try:
            overlap = federation.match(lists=PointLists(lists), resume=True)
            break
        except KeyboardInterrupt:
            done += 9
    assert_equals_plain_join(federation, overlap)
    assert len(federation.fabric.calls) < num_calls
    PointLists(lists).clear()
    assert not lists.exists()
    # A finished alignment is not resumed, and resuming needs unchanged ids.
    with pytest.raises(ConfigError, match="no alignment was interrupted"):
        Federation(ids, **terms).match(lists=PointLists(lists), resume=True)


def test_resuming_needs_the_same_ids(small_chunks, tmp_path):
    places = {name: DirectoryPlace(tmp_path / name) for name in PEOPLE}
    broken = Federation(PEOPLE, places=places, wrap=lambda inner: Stopping(inner, 7))
    with pytest.raises(KeyboardInterrupt):
        broken.match(lists=PointLists(tmp_path / "lists"))
    changed = {**PEOPLE, "shop": [*PEOPLE["shop"], "Someone New"]}
    with pytest.raises(PartyFailed, match="its ids have changed"):
        Federation(changed, places=places).match(lists=PointLists(tmp_path / "lists"), resume=True)


def test_an_alignment_needs_two_to_twenty_participants():
    with pytest.raises(ConfigError, match="2 to 20 participants, got 1"):
        Federation({"a": ["x"]}, own=False).match()
    with pytest.raises(ConfigError, match="2 to 20 participants, got 21"):
        Federation({f"p{number:02d}": [] for number in range(21)}).match()


def test_twenty_participants():
    ids = {f"p{number:02d}": ["shared", f"only {number}"] for number in range(20)}
    federation = Federation(ids, labelled_only=False)
    assert_equals_plain_join(federation, federation.match())


def test_the_command_aligns_extends_and_draws(tmp_path, capsys):
    def write(name: str, *lines: str) -> None:
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")

    write("bank.csv", "name,born,age,default", "Ada,1815-12-10,36,0", "Grace,1906-12-09,85,1")
    write("shop.csv", "who,birthday,spent", "grace,9.12.1906,5", "Emmy,23.3.1882,7")
    write(
        "credit.toml",
        "label_holder = { name = 'bank', label = 'default' }",
        "party.bank = { file = 'bank.csv', id = 'name' }",
        "party.shop = { file = 'shop.csv', id = 'who' }",
        "[align]",
        "salt = 'a salt of this federation only'",
        "labelled_only = false",
        "key = [{ rules = ['trim', 'case'] }, { rules = ['date'] }]",
        "columns = { bank = ['name', 'born'], shop = ['who', 'birthday'] }",
    )
    out = tmp_path / "out"
    align(tmp_path / "credit.toml", out=out)
    loaded = {
        name: PartyAlignment.load(out / "parties" / name / "alignment.npz")
        for name in ("bank", "shop")
    }
    check_together({name: item.digest for name, item in loaded.items()})
    both = np.flatnonzero(loaded["bank"].presence.all(axis=1))
    assert [item.row_of_sample()[both].tolist() for item in loaded.values()] == [[1], [0]]
    page = (out / "alignment.html").read_text("utf-8")
    assert "<svg" in page
    assert "Grace" not in page
    assert "splitnn" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="holds an alignment; --extend"):
        align(tmp_path / "credit.toml", out=out)
    write(
        "shop.csv", "who,birthday,spent", "Ada,1815/12/10,1", "grace,9.12.1906,5", "Emmy,18820323,7"
    )
    align(tmp_path / "credit.toml", out=out, extend=True, as_json=True)
    counts = json.loads(capsys.readouterr().out)
    assert (counts["num_samples"], counts["num_complete"]) == (3, 2)
    assert counts["methods"]["splitnn"] == 2
    write("nothing.toml", "label_holder = { name = 'bank' }")
    with pytest.raises(ConfigError, match=r"align: missing; add a table \[align\]"):
        align(tmp_path / "nothing.toml")
