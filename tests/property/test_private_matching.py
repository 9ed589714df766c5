"""Private matching against a plain outer join, and what its messages give away."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from alignments import (
    KEY,
    MODES,
    PEOPLE,
    SALT,
    Federation,
    Recording,
    assert_equals_plain_join,
    make_chunks_small,
)
from colonnade.align import group, participant
from colonnade.align.alignment_file import PartyAlignment, check_together
from colonnade.align.counting import MemoryCount
from colonnade.align.ids import Texts
from colonnade.align.participant import AlignParty
from colonnade.align.participant_files import DirectoryStore, MemoryStore
from colonnade.align.participant_round import NUM_CHECKS
from colonnade.align.point_lists import PointLists
from colonnade.align.record import load_record, save_record
from colonnade.align.terms import AlignPolicy
from colonnade.cli.align import align
from colonnade.core.errors import ConfigError, PartyFailed, ProtocolError
from colonnade.core.messages import Call, Reply
from messages import says
from probes import Wrapped


@pytest.fixture
def small_chunks(monkeypatch):
    make_chunks_small(monkeypatch)


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


def lists_of(kind: str, num_parties: int) -> dict[str, list[str]]:
    """Lists of one kind of trouble; everybody else's overlap in part."""
    ids = {
        f"p{party}": [f"id-{item}" for item in range(party, party + 2 * num_parties)]
        for party in range(num_parties)
    }
    last = f"p{num_parties - 1}"
    if kind == "unicode":
        forms = ["Åse", "A\u030ase", "\uff21\u030aSE", " åse ", "a\u030aSe", "åse"]
        for place, name in enumerate(ids):
            ids[name] += [forms[place], "名前", "ﬁn" if place % 2 else "FIN"]
    elif kind == "duplicates":
        ids = {name: [*items, items[0], f" {items[-1].upper()} "] for name, items in ids.items()}
    elif kind == "empty intersection":
        ids = {name: [f"{name} {item}" for item in items[:4]] for name, items in ids.items()}
    elif kind == "one empty":
        ids[last] = []
    elif kind == "label holder empty":
        ids["p0"] = []
    else:
        assert kind == "one all"
        ids[last] = [f"id-{item}" for item in range(4 * num_parties)]
    return ids


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("labelled_only", [True, False])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_parties", [2, 3, 4, 5, 6])
@pytest.mark.parametrize(
    "kind",
    [
        "unicode",
        "duplicates",
        "empty intersection",
        "one empty",
        "label holder empty",
        "one all",
    ],
)
def test_every_kind_of_lists_equals_a_plain_outer_join(kind, num_parties, mode, labelled_only, own):
    ids = lists_of(kind, num_parties)
    federation = Federation(ids, own=own, mode=mode, labelled_only=labelled_only, holder="p0")
    overlap = federation.match()
    assert_equals_plain_join(federation, overlap)
    if kind == "empty intersection":
        assert all(len(who) == 1 for who in overlap.combinations)


@pytest.mark.parametrize("num_parties", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("mode", MODES)
def test_equals_a_plain_outer_join_over_several_chunks(num_parties, mode, small_chunks):
    numbers = np.random.default_rng(num_parties)
    ids = {
        f"p{party}": [f"{item}" for item in numbers.choice(60, size=size, replace=False)]
        for party, size in enumerate([45, 30, 1, 40, 20, 33][:num_parties])
    }
    ids[f"p{num_parties - 1}"] = [str(item) for item in range(60)]  # one has all
    federation = Federation(ids, mode=mode, labelled_only=True, holder="p1")
    assert len(federation.everyone) == num_parties
    seen: list[tuple[int, int]] = []
    overlap = federation.match(progress=lambda done, total: seen.append((done, total)))
    assert_equals_plain_join(federation, overlap)
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_no_id_and_no_unkeyed_hash_of_one_is_ever_sent(mode, own):
    """All links together; with the label holder's list behind a link too where it is not own."""
    federation = Federation(PEOPLE, wrap=Recording, mode=mode, own=own)
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
                for size in (16, 32):
                    short = hashlib.blake2b(prefix + raw, digest_size=size).digest()
                    assert short[:16] not in transcript
            wide = hashlib.sha512(prefix + raw).digest()
            assert rbcl.crypto_core_ristretto255_from_hash(wide)[:16] not in transcript
        for key in (b"", SALT.encode()):
            prints = Texts.pack([text]).fingerprints([0], key=key)
            assert prints.tobytes() not in transcript
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
    first, second = (federation.fabric.messages() for federation in runs)
    assert len(first) > 10
    assert not first & second
    assert runs[0].alignments["bank"].digest != runs[1].alignments["bank"].digest


def test_no_party_ever_sees_two_lists_that_can_be_compared():
    """Whatever a party gets or computes, no value of one list is a value of another's."""
    ids = {name: ["same", "ids", "everywhere"] for name in "abcd"}
    federation = Federation(ids, wrap=Recording, mode="intersection", holder="a")
    federation.match()
    for party in "bcd":
        scalar = federation.everyone[party]
        state = scalar.store.load_state()
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
        factor = group.derive_scalar(federation.everyone["b"].store.load_state().secret, "scalar")
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
@pytest.mark.parametrize(
    ("mode", "verb"),
    [("intersection", verb) for verb in ("offer", "blind", "release", "locate", "trace")]
    + [("union", verb) for verb in ("offer", "blind", "locate")],
)
def test_a_permuted_or_truncated_reply_is_detected(mode, verb, how):
    federation = Federation(PEOPLE, wrap=lambda inner: Meddling(inner, verb, how), mode=mode)
    with pytest.raises(ProtocolError, match=r"party '(shop|telco)'.*(cut|permuted)"):
        federation.match()
    assert all(party.alignment is None for party in federation.everyone.values())


class MeddlingDown(Wrapped):
    """Changes what one verb carries to the parties."""

    def __init__(self, inner: Any, verb: str, how: str) -> None:
        super().__init__(inner)
        self.verb, self.how = verb, how

    def send(self, call: Call) -> None:
        if call.verb == self.verb:
            values = list(call.arguments)
            place = next(at for at, item in enumerate(values) if torch.is_tensor(item))
            content = values[place]
            values[place] = content[:-1] if self.how == "cut" else content.flip(0)
            call = replace(call, arguments=tuple(values))
        super().send(call)


@pytest.mark.parametrize("how", ["cut", "permuted"])
@pytest.mark.parametrize("verb", ["blind", "absorb", "trace", "assign", "describe", "commit"])
def test_a_party_detects_a_permuted_or_truncated_call(verb, how):
    ids = {"a": [*"tuvwxyz"], "b": [*"uvwx"], "c": [*"uvwyz"]}
    wrap = lambda inner: MeddlingDown(inner, verb, how)  # noqa: E731
    terms = {"mode": "intersection", "labelled_only": True}
    if verb == "describe":
        # In the intersection every sample has the same bits: nothing to permute.
        terms = {"mode": "union", "labelled_only": False}
    federation = Federation(ids, wrap=wrap, **terms)
    with pytest.raises(PartyFailed, match=r"party '(b|c)'.*(permuted|digest)"):
        federation.match()
    assert federation.everyone["b"].alignment is None


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
    with pytest.raises(ProtocolError, match=says("'a'", "'b'", "key", "order")):
        federation.match()


def test_other_terms_are_found_before_anything_is_sent():
    federation = Federation(
        PEOPLE, wrap=Recording, salts={"telco": "the salt of another federation"}
    )
    with pytest.raises(PartyFailed, match=says("'telco'", "align", "salt", "mode")):
        federation.match()
    assert {call.verb for call in federation.fabric.calls} <= {"terms", "enter"}


def test_a_party_refuses_what_its_policy_does_not_allow():
    counts = {name: MemoryCount() for name in PEOPLE}
    policy = AlignPolicy(max_alignments=1)
    Federation(PEOPLE, counts=counts, policy=policy).match()
    with pytest.raises(PartyFailed, match=says("'shop'", 1, "30 days")):
        Federation(PEOPLE, counts=counts, policy=policy).match()
    with pytest.raises(PartyFailed, match=says("'telco'", 3, 4)):
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

    def blind(number: int, start: int = 0, owner: str = "bank") -> None:
        points = group.hash_and_multiply([str(number).encode()], b"x", (3).to_bytes(32, "little"))
        seal = participant.make_seal("run", 0, owner, 0, start, points)
        party.blind(owner, 1, start, torch.from_numpy(np.array(points)), _bytes(seal))

    with pytest.raises(ProtocolError, match=says("'shop'", "lengths", "once")):
        party.admit({**sizes, "another": 1e6}, "bank")
    blind(1)
    blind(1)
    with pytest.raises(ProtocolError, match=says("'shop'", "'bank'", "already")):
        blind(2)
    with pytest.raises(ProtocolError, match=says("'shop'", "5 to 6", "'bank'", 12)):
        blind(3, start=5)
    with pytest.raises(ProtocolError, match=says("'shop'", "0 to 1", "'nobody'", 0)):
        blind(4, owner="nobody")


def test_a_party_keeps_the_label_holder_from_following_its_list():
    party = Federation(PEOPLE, mode="intersection").everyone["shop"]
    party.enter("run", 0, _bytes(party._terms("run", 0).tobytes()), False)
    party.admit(dict.fromkeys(PEOPLE, 20.0), "bank")
    points = group.hash_and_multiply([b"x"], b"x", (3).to_bytes(32, "little"))
    arguments = (torch.from_numpy(np.array(points)), _bytes(b""))
    with pytest.raises(ProtocolError, match=says("'shop'", "intersection", "own list")):
        party.blind("bank", 1, 0, *arguments)
    with pytest.raises(ProtocolError, match=says("'shop'", "shuffles", "label holder")):
        party.absorb("telco", 1, 0, *arguments)
    places = np.array([99])
    seal = participant.make_seal("run", 0, "bank", -3, 0, places)
    with pytest.raises(ProtocolError, match=says("position", 20)):
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
        places = {name: DirectoryStore(tmp_path / name) for name in ids}
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
    places = {name: MemoryStore() for name in PEOPLE}
    record = Federation(PEOPLE, places=places).match().record
    fewer = {**PEOPLE, "shop": PEOPLE["shop"][1:]}
    with pytest.raises(PartyFailed, match=says("'shop'", "DataError", "1 ids")):
        Federation(fewer, places=places).match(extend=record)
    with pytest.raises(
        ConfigError, match=says(["bank", "shop", "telco"], ["bank", "new", "shop", "telco"])
    ):
        Federation({**PEOPLE, "new": ["x"]}, places=places).match(extend=record)
    with pytest.raises(PartyFailed, match=says("'shop'", "ProtocolError", "extended")):
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
    places = {name: DirectoryStore(tmp_path / name) for name in ids}
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
    with pytest.raises(ConfigError, match=says("resume", "interrupted")):
        Federation(ids, **terms).match(lists=PointLists(lists), resume=True)


def test_resuming_needs_the_same_ids(small_chunks, tmp_path):
    places = {name: DirectoryStore(tmp_path / name) for name in PEOPLE}
    broken = Federation(PEOPLE, places=places, wrap=lambda inner: Stopping(inner, 7))
    with pytest.raises(KeyboardInterrupt):
        broken.match(lists=PointLists(tmp_path / "lists"))
    changed = {**PEOPLE, "shop": [*PEOPLE["shop"], "Someone New"]}
    with pytest.raises(PartyFailed, match=says("'shop'", "DataError", "interrupted")):
        Federation(changed, places=places).match(lists=PointLists(tmp_path / "lists"), resume=True)


def test_an_alignment_needs_two_to_twenty_participants():
    with pytest.raises(ConfigError, match=says("party", "2 to 20", 1)):
        Federation({"a": ["x"]}, own=False).match()
    with pytest.raises(ConfigError, match=says("party", "2 to 20", 21)):
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
    with pytest.raises(ConfigError, match=says("--out", "--extend")):
        align(tmp_path / "credit.toml", out=out)
    write(
        "shop.csv", "who,birthday,spent", "Ada,1815/12/10,1", "grace,9.12.1906,5", "Emmy,18820323,7"
    )
    align(tmp_path / "credit.toml", out=out, extend=True, as_json=True)
    counts = json.loads(capsys.readouterr().out)
    assert (counts["num_samples"], counts["num_complete"]) == (3, 2)
    assert counts["methods"]["splitnn"] == 2
    # Every party has counted both, beside its own table and nowhere else.
    for name in ("bank", "shop"):
        counted = json.loads((tmp_path / f"{name}.csv.{name}.alignments.json").read_text("utf-8"))
        assert len(counted["days"]) == 2
    assert not list(out.rglob("*alignments.json"))
    write("nothing.toml", "label_holder = { name = 'bank' }")
    with pytest.raises(ConfigError, match=says("nothing.toml", "align", "salt")):
        align(tmp_path / "nothing.toml")


def test_another_directory_and_another_salt_do_not_begin_a_new_count(tmp_path):
    for name in ("bank", "shop"):
        (tmp_path / f"{name}.csv").write_text("id,x,default\n1,2,0\n2,3,1\n", "utf-8")

    def config(salt: str, **more: str) -> None:
        lines = [
            "label_holder = { name = 'bank', label = 'default' }",
            "party.bank = { file = 'bank.csv', id = 'id' }",
            "party.shop = { file = 'shop.csv', id = 'id' }",
            "[align]",
            f"salt = '{salt}'",
            "policy = { max_alignments = 2 }",
            *(f"{key} = '{value}'" for key, value in more.items()),
        ]
        (tmp_path / "credit.toml").write_text("\n".join(lines), "utf-8")

    config("the first salt of all")
    align(tmp_path / "credit.toml", out=tmp_path / "one")
    config("quite another salt here")
    align(tmp_path / "credit.toml", out=tmp_path / "two")
    with pytest.raises(PartyFailed, match=says("'bank'", 2, "30 days")):
        align(tmp_path / "credit.toml", out=tmp_path / "three")
    # Where a party keeps its count is for the party to say.
    config("quite another salt here", counts="counts")
    align(tmp_path / "credit.toml", out=tmp_path / "three")
    assert len(list((tmp_path / "counts").glob("*.alignments.json"))) == 2
