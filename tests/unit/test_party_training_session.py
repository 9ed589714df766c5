"""A party's training session takes sample numbers of the agreed alignment only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from alignments import Federation
from colonnade.align.participant_files import DirectoryStore
from colonnade.core.errors import StorageError
from colonnade.core.messages import Batch, Call, Reply
from colonnade.core.numerics import NUMERICS
from colonnade.data.blocks import make_block
from colonnade.data.prepare import Preparation
from colonnade.federate.party_home import PartySettings
from colonnade.federate.party_policy import PartyPolicy
from colonnade.federate.party_sessions import write_terms
from colonnade.federate.run_at_party import read_agreed, run_directory
from colonnade.federate.train_session import TrainSession

IDS = {
    "bank": [f"person {number}" for number in range(12)],
    "telco": [f"person {number}" for number in (3, 9, 1, 7, 5, 11, 0, 20)],
}
NUM_SAMPLES = 12
RUN = "ab" * 16


class Session:
    """'telco' at home after a real alignment with 'bank', and a session that assembles."""

    def __init__(self, home: Path) -> None:
        place = DirectoryStore(home / "alignment")
        federation = Federation(IDS, mode="union", labelled_only=True, places={"telco": place})
        self.overlap = federation.match()
        assert self.overlap.num_samples == NUM_SAMPLES
        write_terms(home / "alignment", federation.spec)
        self.alignment = federation.alignments["telco"]
        values = np.arange(len(IDS["telco"]), dtype=float)
        table = pd.DataFrame({"id": IDS["telco"], "calls": values, "minutes": values**2})
        table.to_csv(home / "telco.csv", index=False)
        settings = PartySettings(
            name="telco",
            label_holder="bank",
            hub="127.0.0.1:1",
            data=home / "telco.csv",
            id="id",
            allow_unprotected=True,
        )
        self.desk = TrainSession(home=home, settings=settings, policy=PartyPolicy())

    def assemble(
        self,
        train: Sequence[int],
        *,
        digest: str | None = None,
        numerics: int | None = NUMERICS,
        **others: Sequence[int],
    ) -> Reply:
        agreed = {"names": ["telco"], "party": {"telco": {}}, "stop": {"exchanges": 1}}
        agreed |= {"data": {"batch_size": len(train)}, "numerics": numerics}
        samples = {"train": train, **others}
        has = self.alignment.row_of_sample() >= 0
        numbers = {part: torch.tensor(items, dtype=torch.int64) for part, items in samples.items()}
        presence = {
            # A number outside the alignment is nobody's sample; the roll may say what it wants.
            part: torch.tensor(
                [n < 0 or n >= len(has) or bool(has[n]) for n in items], dtype=torch.bool
            ).reshape(-1, 1)
            for part, items in samples.items()
        }
        digest = self.overlap.digest if digest is None else digest
        return self.ask("assemble", RUN, json.dumps(agreed), digest, 1, numbers, presence)

    def ask(self, verb: str, *arguments: Any) -> Reply:
        return self.desk.execute(Call(0, "telco", verb, arguments, 0, True))


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path)


def own_samples(session: Session) -> list[int]:
    return np.flatnonzero(session.alignment.row_of_sample() >= 0).tolist()


def test_the_party_is_made_over_its_own_rows(session: Session) -> None:
    reply = session.assemble(own_samples(session))
    assert reply.failure is None
    assert len(session.ask("infer", Batch("train", 0)).value) == len(own_samples(session)) == 7


def test_another_alignments_digest_is_refused(session: Session) -> None:
    other = session.overlap.digest[::-1]
    assert other != session.overlap.digest
    reply = session.assemble(own_samples(session), digest=other)
    assert reply.failure is not None
    assert reply.failure.kind == "ProtocolError"
    assert "another alignment" in reply.failure.message
    # Nobody answers for the method.
    assert session.ask("infer", Batch("train", 0)).failure is not None


@pytest.mark.parametrize("numerics", [NUMERICS - 1, NUMERICS + 1, None])
def test_other_numerics_are_refused(session: Session, numerics: int | None) -> None:
    """Both sides derive batches by themselves: they would speak of different samples."""
    reply = session.assemble(own_samples(session), numerics=numerics)
    assert reply.failure is not None
    assert reply.failure.kind == "ProtocolError"
    assert f"numerics {numerics}" in reply.failure.message
    assert "same version" in reply.failure.message
    assert session.ask("infer", Batch("train", 0)).failure is not None


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize("number", [-1, NUM_SAMPLES])
def test_a_sample_number_outside_the_alignment_is_refused(
    session: Session, number: int, part: str
) -> None:
    inside = own_samples(session)
    samples = {"train": inside[1:], "test": inside[:1]}
    reply = session.assemble(**{**samples, part: [*samples[part], number]})
    assert reply.failure is not None
    assert reply.failure.kind == "ProtocolError"
    assert f"part '{part}'" in reply.failure.message


def test_the_first_and_the_last_number_are_inside(session: Session) -> None:
    ends = [0, NUM_SAMPLES - 1]
    rest = [number for number in own_samples(session) if number not in ends]
    reply = session.assemble(rest, test=ends)
    assert reply.failure is None


def test_a_part_without_samples_is_no_number_outside(session: Session) -> None:
    failure = session.assemble(own_samples(session), test=[]).failure
    assert failure is not None
    assert failure.kind == "DataError"


class TestResumedWithOtherData:
    """A party that comes back to a run with another table says so; its weights would not fit."""

    def test_the_same_again_goes_on(self, session: Session) -> None:
        for _ in range(2):
            assert session.assemble(own_samples(session)).failure is None
            assert session.ask("keep", "exchange-1").failure is None

    @pytest.mark.attack(
        what="A run resumed over another table",
        has="a table that was changed in between, by mistake or not",
        before="two swapped columns cost 0.842 to 0.738 without a word",
        now="refused by the party: swapped columns, one cell, another roll",
    )
    @pytest.mark.parametrize("change", ["swapped columns", "one cell", "another roll"])
    def test_anything_else_is_refused(self, session: Session, change: str, tmp_path: Path) -> None:
        train = own_samples(session)
        assert session.assemble(train).failure is None
        assert session.ask("keep", "exchange-1").failure is None
        table = pd.read_csv(tmp_path / "telco.csv")
        if change == "swapped columns":
            table = table.rename(columns={"calls": "minutes", "minutes": "calls"})
        elif change == "one cell":
            table.loc[2, "calls"] += 0.5
        else:
            train = train[:-1]
        table.to_csv(tmp_path / "telco.csv", index=False)
        failure = session.assemble(train).failure
        assert failure is not None
        assert failure.kind == "DataError"
        assert "'telco'" in failure.message

    def test_before_there_is_a_checkpoint_a_run_may_begin_anew(self, session: Session) -> None:
        train = own_samples(session)
        assert session.assemble(train).failure is None
        assert session.assemble(train[:-1]).failure is None


def test_a_party_keeps_what_rebuilds_its_half_later(session: Session, tmp_path: Path) -> None:
    place = run_directory(tmp_path, RUN)
    with pytest.raises(StorageError, match="no agreement is kept"):
        read_agreed(place)
    assert session.assemble(own_samples(session)).failure is None
    kept = read_agreed(place)
    assert (kept.names, kept.num_outputs) == (("telco",), 1)
    assert kept.alignment == session.overlap.digest
    assert kept.spec.data.batch_size == 7
    table = pd.read_csv(tmp_path / "telco.csv").set_index("id")
    block = make_block("telco", table)
    rows = np.sort([IDS["telco"].index(item) for item in IDS["bank"] if item in IDS["telco"]])
    fitted = Preparation.fit(block, rows, kept.spec.prepare_of("telco"))
    assert kept.preparation.numeric == ("calls", "minutes")
    # The order of training rows is the alignment's, so sums may differ in the last bit.
    np.testing.assert_allclose(kept.preparation.means, fitted.means, rtol=1e-12)
    assert (place / "agreed.json").stat().st_mode & 0o077 == 0


def test_a_damaged_agreement_is_named(session: Session, tmp_path: Path) -> None:
    place = run_directory(tmp_path, RUN)
    assert session.assemble(own_samples(session)).failure is None
    content = json.loads((place / "agreed.json").read_text())
    del content["preparation"]["means"]
    (place / "agreed.json").write_text(json.dumps(content))
    with pytest.raises(StorageError, match=r"agreed\.json: damaged"):
        read_agreed(place)
