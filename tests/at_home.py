"""Parties at home, each with a real alignment and a training session: for a label holder to ask."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from alignments import Federation
from colonnade.align.participant_files import DirectoryStore
from colonnade.core.messages import Call, Failure, Summand
from colonnade.core.numerics import NUMERICS
from colonnade.core.party import Party
from colonnade.federate.own_settings import SECRET
from colonnade.federate.party_home import PartySettings
from colonnade.federate.party_policy import PartyPolicy
from colonnade.federate.party_sessions import write_terms
from colonnade.federate.train_session import TrainSession

__all__ = ["RUN", "AtHome"]

RUN = "ab" * 16


class AtHome:
    """Parties with tables over the same samples, aligned with the label holder 'bank'.

    ``ask`` raises AssertionError if a party fails; ``failure`` gives the failure.
    """

    def __init__(
        self,
        root: Path,
        tables: Mapping[str, np.ndarray[Any, Any]],
        *,
        policies: Mapping[str, PartyPolicy] | None = None,
        common_seed: bool = False,
        allow_unprotected: bool = True,
    ) -> None:
        self.root, self.names = root, tuple(sorted(tables))
        self.num_samples = len(next(iter(tables.values())))
        ids = [f"person {number}" for number in range(self.num_samples)]
        places = {name: DirectoryStore(self.home(name) / "alignment") for name in tables}
        federation = Federation(
            dict.fromkeys(("bank", *tables), ids),
            mode="union",
            labelled_only=True,
            places=places,
        )
        self.digest = federation.match().digest
        self.rows = {
            name: federation.alignments[name].row_of_sample()[: self.num_samples] for name in tables
        }
        self.sessions = {}
        for name, values in tables.items():
            home = self.home(name)
            write_terms(home / "alignment", federation.spec)
            # A secret for everybody but the label holder, and the same one in every run of a test.
            (home / SECRET).write_text(hashlib.sha256(f"{name} in tests".encode()).hexdigest())
            table = pd.DataFrame(values, columns=[f"c{at}" for at in range(values.shape[1])])
            table.insert(0, "id", ids)
            table.to_csv(home / "table.csv", index=False)
            settings = PartySettings(
                name=name,
                label_holder="bank",
                hub="127.0.0.1:1",
                data=home / "table.csv",
                id="id",
                common_seed=common_seed,
                allow_unprotected=allow_unprotected,
            )
            policy = (policies or {}).get(name) or PartyPolicy()
            self.sessions[name] = TrainSession(home=home, settings=settings, policy=policy)

    def home(self, name: str) -> Path:
        return self.root / name

    def assemble(
        self, name: str, proposed: Mapping[str, Any], samples: Sequence[int] | None = None
    ) -> Failure | None:
        """Have a party make its half over a roll of these samples; all of them if not given."""
        chosen = list(range(self.num_samples)) if samples is None else list(samples)
        agreed = {
            "names": list(self.names),
            "numerics": NUMERICS,
            "label_holder": {"name": "bank"},
            "stop": {"exchanges": 5},
            "data": {"batch_size": len(chosen)},
            **proposed,
        }
        numbers = {"train": torch.tensor(chosen, dtype=torch.int64)}
        presence = {"train": torch.ones(len(chosen), len(self.names), dtype=torch.bool)}
        arguments = (RUN, json.dumps(agreed), self.digest, 1, numbers, presence)
        return self.failure(name, "assemble", *arguments)

    def failure(self, name: str, verb: str, *arguments: Any, **more: Any) -> Failure | None:
        return self.sessions[name].execute(Call(1, name, verb, arguments, 0, True, **more)).failure

    def ask(self, name: str, verb: str, *arguments: Any, summand: Summand | None = None) -> Any:
        call = Call(1, name, verb, arguments, 0, True, summand=summand)
        reply = self.sessions[name].execute(call)
        assert reply.failure is None, reply.failure
        return reply.value

    def party(self, name: str) -> Party:
        """The party's half itself, which no label holder sees: for scoring."""
        party = self.sessions[name]._successor
        assert isinstance(party, Party)
        return party
