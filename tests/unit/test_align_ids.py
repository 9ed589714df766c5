"""Ids as they are: rules, composite keys, duplicates, and messages that never show an id."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from colonnade.align.alignment_file import PartyAlignment, check_together
from colonnade.align.counting import FileCount
from colonnade.align.ids import Texts, prepare_ids, prepare_pieces
from colonnade.align.participant import AlignParty
from colonnade.align.participant_files import DirectoryStore, MemoryStore, SecretState
from colonnade.align.rules import KeyPart
from colonnade.align.terms import AlignPolicy, AlignSpec
from colonnade.core.errors import ConfigError, DataError, ProtocolError, StorageError
from messages import says


@pytest.mark.parametrize(
    ("rules", "text", "expected"),
    [
        (("trim",), "  Ada \t Lovelace\u00a0", "Ada Lovelace"),
        (("nfkc",), "ﬁle ４２ e\u0301", "file 42 é"),
        (("case",), "STRASSE Straße", "strasse strasse"),
        (("nfkc", "case"), "Ｅ\u0301", "é"),
        (("digits",), "DE 12-34 ٣", "12343"),
        (("email",), " mailto:Ada.L@Example.ORG. ", "ada.l@example.org"),
        (("email",), "no address", ""),
        (("email",), "a@localhost", ""),
        (("phone",), "+49 (0)30 / 123-45", "+493012345"),
        (("phone",), "0049 30 12345", "+493012345"),
        (("phone",), "tel:+493012345", "+493012345"),
        (("date",), "31.5.1990", "1990-05-31"),
        (("date",), "19900531", "1990-05-31"),
        (("date",), "1990/5/31", "1990-05-31"),
        (("date",), "31.2.1990", ""),
        (("date",), "5/31/1990", ""),
        ((), " as it is ", " as it is "),
    ],
)
def test_a_rule_makes_one_form_of_many(rules, text, expected):
    assert KeyPart(rules=rules).apply(text) == expected


def test_a_national_number_gets_the_country():
    part = KeyPart(rules=("phone",), country="49")
    forms = ["030 12345", "+49 30 12345", "0049 (0) 30 12345".replace(" (0) ", "(0)"), "(030)12345"]
    assert {part.apply(text) for text in forms} == {"+493012345"}


@pytest.mark.parametrize("country", ["0", "+49", "1234", "x"])
def test_a_wrong_country_is_refused(country):
    with pytest.raises(ConfigError, match="country"):
        KeyPart(rules=("phone",), country=country)


def test_rules_are_idempotent():
    texts = ["  ÄÖ ß", "+49 (0)30 1", "x@Y.de", "1.2.2000", "ﬀ１"]
    for rule in ("trim", "nfkc", "case", "digits", "email", "phone", "date"):
        part = KeyPart(rules=(rule,))
        for text in texts:
            assert part.apply(part.apply(text)) == part.apply(text)


def test_composite_keys_can_not_run_into_each_other():
    key = (KeyPart(), KeyPart())
    prepared = prepare_ids([["ab", "a", 'a","b'], ["c", "bc", "c"]], key, where="x")
    # These very texts are hashed at every party, so another release must make the same.
    assert list(prepared.ids) == ['["ab","c"]', '["a","bc"]', '["a\\",\\"b","c"]']


def test_a_name_and_a_birth_date():
    key = (KeyPart(rules=("nfkc", "trim", "case")), KeyPart(rules=("date",)))
    bank = prepare_ids([["Ada  LOVELACE"], ["10.12.1815"]], key, where="bank")
    shop = prepare_ids([["ada lovelace "], [pd.Timestamp("1815-12-10")]], key, where="shop")
    assert tuple(bank.ids) == tuple(shop.ids)


def test_numbers_and_texts_are_the_same_id():
    forms = ([7, 8], [7.0, 8.0], ["7", "8"], np.array([7, 8], dtype="int32"))
    assert {tuple(prepare_ids([form], where="x").ids) for form in forms} == {("7", "8")}


def test_duplicates_are_refused_or_counted_and_never_shown():
    ids = ["Secret", "other", "secret ", "SECRET"]
    key = (KeyPart(rules=("trim", "case")),)
    with pytest.raises(
        DataError, match=says("bank", "2 duplicate", "row 2", "align.duplicates")
    ) as raised:
        prepare_ids([ids], key, where="bank")
    assert "secret" not in str(raised.value).lower()
    kept = prepare_ids([ids], key, where="bank", duplicates="keep_first")
    assert tuple(kept.ids) == ("secret", "other")
    assert kept.rows.tolist() == [0, 1]
    assert (kept.num_duplicates, kept.num_rows) == (2, 4)


@pytest.mark.parametrize("ids", [["a", None], ["a", "  "], ["a", float("nan")]])
def test_rows_without_an_id_are_refused(ids):
    with pytest.raises(DataError, match=says("bank", "1 of 2", "id", "row 1")):
        prepare_ids([ids], where="bank")


def test_a_key_needs_a_column_for_each_part():
    with pytest.raises(ConfigError, match=says("bank", 1, 2)):
        prepare_ids([["a"]], (KeyPart(), KeyPart()), where="bank")


def test_a_short_salt_is_refused_with_a_good_one():
    with pytest.raises(ConfigError, match=says("salt", 16, 5)):
        AlignSpec(salt="short")


def test_the_agreed_terms_are_without_the_salt_and_anything_of_ones_own(tmp_path):
    own = {"duplicates": "first", "columns": {"bank": ("a",)}, "counts": tmp_path}
    terms = json.loads(AlignSpec(salt="s" * 16, labelled_only=False, mode="intersection").agreed)
    assert terms.keys() == {"mode", "labelled_only", "key"}
    assert (terms["mode"], terms["labelled_only"]) == ("intersection", False)
    assert AlignSpec(salt="s" * 16, **own).agreed == AlignSpec(salt="t" * 16).agreed
    assert AlignSpec(salt="s" * 16, labelled_only=False).agreed != AlignSpec(salt="s" * 16).agreed


def test_a_policy_limits_alignments_and_ids():
    policy = AlignPolicy(max_ids=5, max_alignments=2, per_days=7)
    days = policy.check_days([], 100, "bank")
    days = policy.check_days(days, 103, "bank")
    with pytest.raises(ProtocolError, match=says("'bank'", 2, "7 days")):
        policy.check_days(days, 106, "bank")
    assert policy.check_days(days, 107, "bank") == [103, 107]
    with pytest.raises(ProtocolError, match=says("'bank'", 5, "'shop'", 6)):
        policy.check_sizes({"shop": 6}, "bank")
    with pytest.raises(ConfigError, match="max_ids"):
        AlignPolicy(max_ids=0)


def test_an_alignment_has_only_its_own_verbs():
    assert "infer" not in AlignParty.verbs
    assert "keep" not in AlignParty.verbs
    assert {"offer", "blind", "assign"} <= AlignParty.verbs.keys()


def _alignment(digest: str = "0" * 64) -> PartyAlignment:
    return PartyAlignment(
        participant="bank",
        names=("bank", "shop"),
        label_holder="shop",
        mode="union",
        run="r",
        round=0,
        num_samples=3,
        numbers=np.array([0, 2]),
        rows=np.array([5, 1]),
        presence=np.array([[1, 0], [0, 1], [1, 1]], dtype=bool),
        digest=digest,
    )


def test_an_alignment_file_comes_back_as_it_was(tmp_path):
    path = tmp_path / "alignment.npz"
    _alignment().save(path)
    loaded = PartyAlignment.load(path)
    assert loaded.names == ("bank", "shop")
    assert loaded.row_of_sample().tolist() == [5, -1, 1]
    assert np.array_equal(loaded.presence, _alignment().presence)
    assert path.stat().st_mode & 0o077 == 0


def test_a_damaged_alignment_file_is_refused(tmp_path):
    path = tmp_path / "alignment.npz"
    with pytest.raises(StorageError, match=says("alignment.npz", "colonnade align")):
        PartyAlignment.load(path)
    _alignment().save(path)
    content = bytearray(path.read_bytes())
    for damage in (content[:100], content[: len(content) // 2], b"", b"not a zip"):
        path.write_bytes(damage)
        with pytest.raises(StorageError, match=says("alignment.npz", "damaged")):
            PartyAlignment.load(path)


def test_alignments_of_two_runs_do_not_go_together():
    check_together({"bank": "aa", "shop": "aa"})
    with pytest.raises(DataError, match=says("'bank' aa", "'shop' bb")):
        check_together({"bank": "aa", "shop": "bb"})


@pytest.mark.parametrize("kind", ["memory", "directory"])
def test_a_place_keeps_copies(kind, tmp_path):
    place = MemoryStore() if kind == "memory" else DirectoryStore(tmp_path)
    assert place.load_state() is None
    state = SecretState(run="r", secret=b"s" * 32, numbers=np.array([3, -1], np.int32))
    place.save_state(state)
    state.numbers[0] = 7
    state.ends.append(2)
    loaded = place.load_state()
    assert loaded.numbers.tolist() == [3, -1]
    assert loaded.numbers.dtype == np.int32
    assert loaded.ends == []
    assert "ssss" not in repr(loaded)


def test_a_count_is_the_partys_own_and_outlasts_its_processes(tmp_path):
    policy = AlignPolicy(max_alignments=2, per_days=7)
    path = tmp_path / "new" / "bank.csv.alignments.json"
    FileCount(path).admit(policy, 100, "bank")
    FileCount(path).admit(policy, 103, "bank")
    with pytest.raises(ProtocolError, match=says("'bank'", 2, "7 days")):
        FileCount(path).admit(policy, 106, "bank")
    FileCount(path).admit(policy, 107, "bank")
    assert path.stat().st_mode & 0o077 == 0
    for damage in (b"", b"{}", b"[1]", b'{"days": 3}', b'{"days": ["x"]}'):
        path.write_bytes(damage)
        with pytest.raises(StorageError, match=says("bank.csv.alignments.json", "damaged")):
            FileCount(path).admit(policy, 200, "bank")
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(StorageError, match=r"align\.counts"):
        FileCount(blocked / "bank.json").admit(policy, 1, "bank")


def test_a_table_that_comes_in_pieces_is_the_same_as_in_one():
    key = (KeyPart(rules=("trim", "case")), KeyPart())
    names, dates = ["Ada ", "ADA", "Bo", "Cy", "Bo"], ["1", "1", "2", "3", "4"]
    whole = prepare_ids([names, dates], key, where="x", duplicates="keep_first")
    pieces = [[names[at : at + 2], dates[at : at + 2]] for at in range(0, 5, 2)]
    pieced = prepare_pieces(pieces, key, where="x", duplicates="keep_first")
    assert tuple(pieced.ids) == tuple(whole.ids)
    assert pieced.rows.tolist() == whole.rows.tolist() == [0, 2, 3, 4]
    assert pieced.num_duplicates == 1
    assert pieced.digest(b"k") == whole.digest(b"k") != whole.digest(b"l")
    with pytest.raises(DataError, match=says("x", "part 2", "1 of 3", "row 2")):
        prepare_pieces([[["a", "b"], ["1", "2"]], [["c"], [None]]], key, where="x")
    with pytest.raises(DataError, match=says("x", "lengths")):
        prepare_pieces([[["a", "b"], ["1"]]], key, where="x")
    assert len(prepare_pieces([], key, where="x")) == 0


def test_texts_packed_at_several_times_read_as_they_were(monkeypatch):
    from colonnade.align import ids

    monkeypatch.setattr(ids, "_AT_ONCE", 3)
    texts = ["", "a", "été", "名前", "x" * 50, "", "z"]
    whole = Texts.pack(texts)
    monkeypatch.setattr(ids, "_SHORT", 8)
    wide = Texts.pack(iter(texts))
    assert tuple(whole) == tuple(wide) == tuple(texts)
    assert whole.digest(b"k") == wide.digest(b"k")
    prints = whole.fingerprints(range(7), key=b"k")
    assert np.array_equal(prints, wide.fingerprints(np.arange(7, dtype=np.int32), key=b"k"))
    assert np.array_equal(prints[0], prints[5])


def test_an_alignment_is_of_one_table():
    ids = prepare_ids([["a", "b", "c"]], where="bank")
    alignment = replace(_alignment(), table=ids.digest(b"r"))
    alignment.check_ids(ids)
    for other in (["a", "c", "b"], ["a", "b"], ["a", "b", "c", "d"], ["ab", "", "c"][:1]):
        with pytest.raises(DataError, match=says("'bank'", "aligned", "--extend")):
            alignment.check_ids(prepare_ids([other], where="bank"))
    with pytest.raises(StorageError, match=says("'bank'", "((2,), (2,), (3, 2))", 4, 2)):
        replace(_alignment(), num_samples=4)
