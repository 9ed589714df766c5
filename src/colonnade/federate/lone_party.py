"""A party that answers by itself, from its own home: its block, its weights, its own head.

Nobody else is asked. Everything passes the party's door as if the label holder had asked: the
policy of today decides, the account is charged, and a ledger is written. That ledger is apart from
the run's own (``runs/RUN/alone``), because an agent may write to the run's own meanwhile.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from colonnade.core.batches import BatchPlan
from colonnade.core.errors import ConfigError, PartyFailed, Refused, StorageError
from colonnade.core.messages import Batch, Call
from colonnade.core.party import Part, Party
from colonnade.data.blocks import Block, make_block
from colonnade.federate.alignments import find_alignment
from colonnade.federate.own_account import open_account, people_of
from colonnade.federate.party_home import read_party
from colonnade.federate.party_policy import read_policy
from colonnade.federate.party_sessions import keyed_table, read_terms
from colonnade.federate.rebuilt_party import rebuilt_party
from colonnade.federate.run_at_party import NotedUse, noting_refusals, read_agreed
from colonnade.run.door_building import Doors
from colonnade.run.storage import DirectoryVault

__all__ = ["LoneParty"]


class LoneParty:
    """A party's whole model of a run, over its table of today.

    Args:
        home: The party's directory.
        place: The run in it.
        checkpoint: The tag of the weights; the newest if none is given.

    Raises:
        ConfigError: The method gives a party no whole model, or its embeddings leave in sums only.
        Refused: The party's policy is against it.
        StorageError: What the party kept of the run is missing or damaged.
    """

    def __init__(self, home: Path, place: Path, *, checkpoint: str | None = None) -> None:
        self._home, self._settings = home, read_party(home)
        self._policy = read_policy(self._settings.policy)
        self._agreed = read_agreed(place)
        self.name = self._settings.name
        spec = self._agreed.spec
        info = spec.method.info
        self._verbs = info.alone
        if not info.alone or not spec.method.needs.heads:
            raise ConfigError(
                f"run '{place.name}': with method '{info.name}' as it was set no party has a whole "
                "model; the label holder serves it: colonnade federation serve"
            )
        doors = Doors(
            spec=spec, participants=self._agreed.names, label_holder=spec.label_holder.name or ""
        )
        if self.name in doors.masked:
            raise ConfigError(
                f"run '{place.name}': blinded; what this party makes leaves in sums only"
            )
        self._terms = doors.terms_of(self.name)
        with noting_refusals(place / "alone", "serve"):
            self._policy.check_settings(
                spec, self.name, self._terms, allow_unprotected=self._settings.allow_unprotected
            )
        self._account = open_account(home, self._settings, self._policy)
        self._party: Party = rebuilt_party(
            home,
            self._settings,
            self._policy,
            self._agreed,
            doors,
            place,
            self._account,
            told=b"alone",
            ledger=place / "alone",
        )
        self.checkpoint = checkpoint or _newest(place)
        self._party.model.load_state_dict(DirectoryVault(place).fetch(self.checkpoint)["model"])
        self._place = place
        self._use = NotedUse(place)
        self.read_table()

    @property
    def num_outputs(self) -> int:
        """The width of the model's outputs."""
        return self._agreed.num_outputs

    @property
    def data(self) -> Path:
        """The party's table."""
        return self._settings.data

    def read_table(self) -> None:
        """Read the party's table again, by the rules of the run's alignment.

        Raises:
            DataError: It no longer fits the model.
            Refused: The policy is against its columns or its size.
        """
        terms = read_terms(find_alignment(self._home, self._agreed.alignment, self.name))
        ids, table = keyed_table(self._settings, self._policy, terms)
        preparation = self._agreed.preparation
        columns = preparation.columns
        names = ids.ids[:]
        whole: Block = make_block(self.name, table, ids=names, columns=columns)
        with noting_refusals(self._place / "alone", "serve"):
            self._terms = replace(self._terms, columns=columns, num_rows=len(names))
            self._policy.check(self.name, self._terms)
        prepared = preparation.apply(replace(whole, origin=ids.rows))
        features = torch.as_tensor(prepared, dtype=getattr(torch, self._agreed.spec.dtype))
        people = people_of(self._account, self._settings, self._policy, ids)
        row_of = {str(name): row for row, name in enumerate(names)}
        # At once: requests that are under way keep what they began with.
        self._rows = (row_of, features, people)

    def has(self, name: str) -> bool:
        """Whether the table has an id."""
        return name in self._rows[0]

    def features(self, ids: Sequence[str]) -> Tensor:
        """The prepared rows of ids that the table has; they stay here."""
        row_of, features, _ = self._rows
        return features[torch.tensor([row_of[name] for name in ids])]

    def num_far_outside(self, ids: Sequence[str]) -> int:
        """How many of these rows have values far outside the training range."""
        far = self._agreed.preparation.far_outside(self.features(ids).numpy())
        return int(far.sum())

    def answer(self, ids: Sequence[str]) -> Tensor:
        """The model's raw outputs for ids that the table has, a row per id.

        Raises:
            Refused: The policy or the account is against it; nothing was released then.
            PartyFailed: Something else went wrong.
        """
        self._use.note()
        row_of, features, people = self._rows
        rows = torch.tensor([row_of[name] for name in ids])
        asked = replace(self._terms, num_rows_used=len(ids), smallest_batch=len(ids))
        self._policy.check(self.name, asked)
        part = f"alone {secrets.token_hex(16)}"
        plan = BatchPlan(len(rows), len(rows), seed=0, shuffle=False)
        view = self._party.over(
            {part: Part(features=features[rows], plan=plan, rows=None, people=people[rows])}
        )
        value: Batch | Tensor = Batch(part, 0)
        for number, verb in enumerate(self._verbs):
            reply = view.execute(Call(number, self.name, verb, (value,), 0, wants_reply=True))
            if reply.failure is not None:
                if isinstance(reply.failure.cause, Refused):
                    raise reply.failure.cause
                raise PartyFailed(
                    f"party '{self.name}': '{verb}' failed: {reply.failure.kind}", party=self.name
                )
            assert isinstance(reply.value, Tensor)
            value = reply.value
        assert isinstance(value, Tensor)
        return value

    def close(self) -> None:
        """Let go of the account and the ledger."""
        self._account.close()


def _newest(place: Path) -> str:
    tags = sorted(file.stem for file in place.glob("*.safetensors"))
    if not tags:
        raise StorageError(
            f"run '{place.name}': no weights are kept here; they were deleted by party prune, or "
            "the training has not reached a checkpoint"
        )
    return tags[-1]
