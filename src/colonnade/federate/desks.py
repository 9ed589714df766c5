"""Who answers at a party: first somebody who takes the agreed settings, then whom these make.

Everything that a desk takes from the network is text for the strict parser, numbers of samples, or
tensors; the table, its columns and its ids are the party's own and are read here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from colonnade.align.counting import FileCount
from colonnade.align.ids import PreparedIds
from colonnade.align.participant import AlignParty
from colonnade.align.places import DirectoryPlace
from colonnade.align.terms import AlignSpec
from colonnade.core.config import dump, parse
from colonnade.core.errors import ConfigError, ProtocolError, Refused
from colonnade.core.messages import Call, Reply
from colonnade.core.party import Party
from colonnade.core.protection import Guard
from colonnade.core.respondent import Respondent
from colonnade.core.verbs import verb
from colonnade.data.blocks import make_block
from colonnade.federate.home import PartySettings
from colonnade.federate.peers import own_signer, peers_of
from colonnade.federate.policy import PartyPolicy
from colonnade.files import write_atomically
from colonnade.protect.ledger import Ledger
from colonnade.protect.policy import Terms
from colonnade.protect.specs import Blind
from colonnade.run.aligned import load_alignment, read_keyed_table, rows_of_samples
from colonnade.run.arrangement import Roll, narrowed
from colonnade.run.protecting import Guarding
from colonnade.run.silo import fit_preparation, make_encoder, make_parts, make_party, make_plans
from colonnade.run.spec import RunSpec, parse_spec
from colonnade.run.storage import DirectoryVault, read_json

__all__ = ["AlignDesk", "TrainDesk"]

_RUN = re.compile(r"[0-9a-f]{16,64}")


class _Desk(Respondent):
    """Answers its own verb, and for the rest lets its successor answer."""

    def __init__(self, *, name: str) -> None:
        super().__init__(name=name)
        self._successor: Respondent | None = None

    def execute(self, call: Call) -> Reply:
        """Run one call, here or at the successor."""
        if self._successor is None or call.verb in self.verbs:
            return super().execute(call)
        return self._successor.execute(call)


class AlignDesk(_Desk):
    """Takes the terms of an alignment; then the party's half of the matching answers."""

    def __init__(self, *, home: Path, settings: PartySettings, policy: PartyPolicy) -> None:
        super().__init__(name=settings.name)
        self._home, self._settings, self._policy = home, settings, policy

    @verb
    def agree(self, terms: str) -> int:
        """Prepare own ids under the terms; gives how many there are."""
        spec = parse(AlignSpec, _parsed(terms, "align"), path="align")
        # Which columns are the key, what to do with duplicates and where to count is one's own.
        spec = replace(
            spec,
            columns={},
            duplicates=self._policy.duplicates,
            policy=self._policy.align,
            counts=None,
        )
        ids, _ = _keyed(self._settings, self._policy, spec)
        place = self._home / "alignment"
        write_terms(place, spec)
        self._successor = AlignParty(
            name=self.name,
            ids=ids,
            spec=spec,
            place=DirectoryPlace(place),
            count=FileCount(self._home / "alignments.json"),
        )
        return len(ids)


class TrainDesk(_Desk):
    """Takes the settings of a run and the roll; then the party's half of the method answers."""

    def __init__(
        self,
        *,
        home: Path,
        settings: PartySettings,
        policy: PartyPolicy,
    ) -> None:
        super().__init__(name=settings.name)
        self._home, self._settings, self._policy = home, settings, policy

    @verb
    def assemble(
        self,
        run: str,
        settings: str,
        digest: str,
        num_outputs: int,
        samples: Mapping[str, Tensor],
        presence: Mapping[str, Tensor],
    ) -> int:
        """Make the party's half of the method over its own table; gives its number of rows."""
        if not _RUN.fullmatch(run):
            raise ProtocolError("run: 16 to 64 hexadecimal digits name a run")
        agreed = _parsed(settings, "settings")
        names = tuple(agreed.pop("names", ()))
        spec = parse_spec(agreed)
        self._policy.check_encoder(spec, self.name)
        method = spec.method
        gives_away = method.pools_blocks or method.shows_columns or method.shares_labels
        if self.name not in names or gives_away:
            raise ProtocolError(
                f"party '{self.name}' takes part only in runs that name it, whose method leaves "
                "columns and labels where they are"
            )
        if spec.threads is not None:
            torch.set_num_threads(spec.threads)
        roll = _roll(names, samples, presence)
        self._successor, num_rows = self._made(run, spec, digest, num_outputs, roll)
        return num_rows

    def _made(
        self, run: str, spec: RunSpec, digest: str, num_outputs: int, roll: Roll
    ) -> tuple[Party, int]:
        policy = self._policy
        place = self._home / "alignment"
        ids, table = _keyed(self._settings, policy, read_terms(place))
        alignment = load_alignment(DirectoryPlace(place).alignment_path, ids)
        if alignment.digest != digest:
            raise ProtocolError(
                f"party '{self.name}' has another alignment than the label holder; align again"
            )
        whole = make_block(
            self.name, table, ids=ids.ids[:], columns=policy.columns_of(spec, self.name)
        )
        whole = replace(whole, origin=ids.rows)
        known = rows_of_samples(alignment, ids)
        for part, numbers in roll.samples.items():
            if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(known):
                raise ProtocolError(f"part '{part}': sample numbers outside the alignment")
        used = np.full(len(known), -1)
        for numbers in roll.samples.values():
            used[numbers] = known[numbers]
        block, rows = narrowed(whole, used)
        preparation = fit_preparation(spec, self.name, block, rows, roll)
        dtype = getattr(torch, spec.dtype)
        features = torch.as_tensor(preparation.apply(block), dtype=dtype)
        encoder = make_encoder(spec, self.name, preparation, names=roll.names)
        terms = Terms(
            method=spec.method.info.name,
            shares_labels=spec.method.shares_labels,
            columns=(*preparation.numeric, *preparation.levels),
            protections=(),
            num_rows=ids.num_rows,
            num_rows_used=int((used >= 0).sum()),
        )
        place = self._home / "runs" / run
        party = make_party(
            spec,
            self.name,
            encoder,
            make_parts(features, rows, self.name, roll, make_plans(spec, roll)),
            num_outputs=num_outputs,
            vault=DirectoryVault(place),
            guard=self._guard(spec, roll.names, encoder, terms, Ledger(place, run=run)),
        )
        return party, ids.num_rows

    def _guard(
        self,
        spec: RunSpec,
        names: tuple[str, ...],
        encoder: nn.Module,
        terms: Terms,
        ledger: Ledger,
    ) -> Guard:
        """What stands at this party's door; a run that its policy forbids is refused, and noted."""
        holder = spec.label_holder.name or ""
        guarding = Guarding(spec=spec, participants=names, label_holder=holder)
        chain = guarding.chains[self.name]
        try:
            self._policy.check(self.name, replace(terms, protections=chain))
        except Refused as error:
            ledger.append({"event": "refused", "verb": "assemble", "reason": str(error)})
            ledger.seal()
            ledger.close()
            raise
        blinds = any(isinstance(item, Blind) for item in chain)
        return guarding.guard(
            self.name,
            encoder,
            ledger=ledger,
            budget=self._policy.budget,
            signer=own_signer(self._home) if blinds else None,
            verifier=peers_of(self.name, self._home, self._policy.peers) if blinds else None,
        )


def write_terms(place: Path, spec: AlignSpec) -> None:
    """Keep the terms beside the alignment: the ids are to be read the same way later."""
    text = json.dumps(dump(spec), indent=2)
    write_atomically(place / "terms.json", text.encode(), owner_only=True)


def read_terms(place: Path) -> AlignSpec:
    """The terms of the alignment that is there."""
    if not (place / "terms.json").exists():
        raise ConfigError("no alignment here yet; the label holder aligns first")
    return parse(AlignSpec, read_json(place / "terms.json"), path="align")


def _keyed(
    settings: PartySettings, policy: PartyPolicy, spec: AlignSpec
) -> tuple[PreparedIds, Any]:
    columns = policy.key or (settings.id,)
    return read_keyed_table(settings.data, columns, spec, f"ids of '{settings.name}'")


def _parsed(text: str, what: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ProtocolError(f"{what}: not JSON: {error.msg}") from error
    if not isinstance(values, dict):
        raise ProtocolError(f"{what}: a table, not a {type(values).__name__}")
    return values


def _roll(
    names: tuple[str, ...], samples: Mapping[str, Tensor], presence: Mapping[str, Tensor]
) -> Roll:
    if samples.keys() != presence.keys() or "train" not in samples:
        raise ProtocolError("the roll: every part has sample numbers and a presence table")
    for part, numbers in samples.items():
        table = presence[part]
        fits = numbers.dtype is torch.int64 and table.dtype is torch.bool and numbers.dim() == 1
        if not fits or tuple(table.shape) != (len(numbers), len(names)):
            raise ProtocolError(f"the roll, part '{part}': numbers and presence don't fit")
    return Roll(
        names=names,
        samples={part: item.numpy() for part, item in samples.items()},
        presence={part: item.numpy() for part, item in presence.items()},
    )
