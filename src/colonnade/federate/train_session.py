"""A party's session for training: it makes the party's half of the method over its own table."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from colonnade.align.participant_files import DirectoryStore
from colonnade.core.batches import BatchPlan
from colonnade.core.devices import require_device
from colonnade.core.errors import ProtocolError
from colonnade.core.numerics import NUMERICS
from colonnade.core.party import Party
from colonnade.core.releases import RollOfSamples
from colonnade.core.step_rules import StepRules
from colonnade.core.verbs import verb
from colonnade.data.blocks import make_block
from colonnade.federate.alignments import find_alignment
from colonnade.federate.own_account import open_account, people_of
from colonnade.federate.own_settings import effective_settings, own_seed
from colonnade.federate.party_limits import Runs, kept_megabytes
from colonnade.federate.party_sessions import (
    SessionAtParty,
    keyed_table,
    parsed_table,
    read_terms,
)
from colonnade.federate.peers import own_signer, peers_of
from colonnade.federate.roll_calls import checked_names, checked_roll
from colonnade.federate.run_at_party import (
    AgreedRun,
    BoundedVault,
    earlier_run,
    load_weights,
    noting_refusals,
    read_agreed,
    refuse_other_data,
    run_directory,
    write_agreed,
)
from colonnade.protect.ledger import Ledger
from colonnade.protect.policy import Terms
from colonnade.run.alignment_files import load_alignment, rows_of_samples
from colonnade.run.door_building import Doors, OwnTerms
from colonnade.run.party_building import (
    OwnData,
    build_party,
    fit_preparation,
    make_plans,
    num_parameters,
)
from colonnade.run.samples import Roll, narrowed
from colonnade.run.spec import RunSpec, parse_spec

__all__ = ["TrainSession"]


@dataclass(frozen=True, kw_only=True)
class _Considered:
    """Settings that the party's policy lets pass, as far as they can be judged by themselves."""

    place: Path
    spec: RunSpec
    names: tuple[str, ...]
    doors: Doors
    terms: Terms
    # The settings as everybody is told them: without the party's own table.
    common: str
    # The run of this party whose preparation and weights it goes on with, and the checkpoint.
    parent: tuple[Path, str] | None = None


class TrainSession(SessionAtParty):
    """Takes the settings of a run and the roll; then the party's half of the method answers."""

    @verb
    def consider(self, run: str, settings: str) -> None:
        """Refuse settings that the party would not train with, before anybody aligns for them."""
        self._considered(run, settings, "consider")

    @verb
    def assemble(
        self,
        run: str,
        settings: str,
        digest: str,
        num_outputs: int,
        samples: Mapping[str, RollOfSamples],
        presence: Mapping[str, RollOfSamples],
    ) -> int:
        """Make the party's half of the method over its own table; gives its number of rows."""
        asked = self._considered(run, settings, "assemble")
        if "train" not in samples:
            raise ProtocolError("the roll: there is no part 'train' to learn from")
        roll = checked_roll(self.name, asked.names, samples, presence)
        plans = make_plans(asked.spec, roll, asked.doors.label_holder)
        terms = replace(
            asked.terms, smallest_batch=min(plan.smallest_batch for plan in plans.values())
        )
        num_samples = sum(map(len, roll.samples.values()))
        with noting_refusals(asked.place, "assemble", home=self._home):
            self._policy.limits.check(
                self.name,
                {
                    "max_outputs": num_outputs,
                    "max_samples": num_samples,
                    # 'colonnade party prune' makes room.
                    "max_kept_megabytes": kept_megabytes(self._home),
                },
            )
            self._policy.check(self.name, terms)
            self._time = self._runs.begin(self._policy.limits, self.name, time.time(), run=run)
        if asked.spec.threads is not None:
            torch.set_num_threads(asked.spec.threads)
        self._successor, num_rows = self._half(asked, terms, digest, num_outputs, roll, plans)
        return num_rows

    @property
    def _runs(self) -> Runs:
        return Runs(self._home / "runs.json")

    def _considered(self, run: str, settings: str, verb: str) -> _Considered:
        place = run_directory(self._home, run)
        proposed = parsed_table(settings, "settings")
        common = {key: item for key, item in proposed.items() if key not in ("party", "parent")}
        names = checked_names(proposed.pop("names", []))
        parent = earlier_run(self._home, proposed.pop("parent", None))
        numerics = proposed.pop("numerics", None)
        if numerics != NUMERICS:
            # Each side derives batches and draws by itself: they would be about other samples.
            raise ProtocolError(
                f"the label holder trains with numerics {numerics}, party '{self.name}' with "
                f"{NUMERICS}; install the same version of Colonnade on both sides"
            )
        spec = parse_spec(proposed)
        if self.name not in names or not spec.method.stays_home:
            raise ProtocolError(
                f"party '{self.name}' takes part only in runs that name it, whose method leaves "
                "columns and labels where they are"
            )
        own, policy = self._settings.own, self._policy
        if own.encoder is None:
            policy.check_encoder(spec, self.name)
        spec = effective_settings(spec, self.name, own)
        require_device(spec.device, spec.precision, "own.")
        doors = Doors(spec=spec, participants=names, label_holder=spec.label_holder.name or "")
        terms = doors.terms_of(self.name)
        with noting_refusals(place, verb, home=self._home):
            policy.check_settings(
                spec, self.name, terms, allow_unprotected=self._settings.allow_unprotected
            )
            self._runs.check(policy.limits, self.name, time.time(), run=run)
        return _Considered(
            place=place,
            spec=spec,
            names=names,
            doors=doors,
            terms=terms,
            common=json.dumps(common, sort_keys=True),
            parent=parent,
        )

    def _half(
        self,
        asked: _Considered,
        terms: Terms,
        digest: str,
        num_outputs: int,
        roll: Roll,
        plans: Mapping[str, BatchPlan],
    ) -> tuple[Party, int]:
        policy, spec, place, doors = self._policy, asked.spec, asked.place, asked.doors
        aligned = find_alignment(self._home, digest, self.name)
        ids, table = keyed_table(self._settings, policy, read_terms(aligned))
        alignment = load_alignment(DirectoryStore(aligned).alignment_path, ids)
        columns = policy.columns_of(spec, self.name)
        named = (*(columns or ()), *spec.prepare_of(self.name).categorical_columns)
        with noting_refusals(place, "assemble", home=self._home):
            # A column that is not there is refused like one that may not be used: no list of those
            # that are there, and no word on which of the two it is.
            policy.check_named(self.name, named, known=tuple(map(str, table.columns)))
        whole = make_block(self.name, table, ids=ids.ids[:], columns=columns)
        whole = replace(whole, origin=ids.rows)
        known = rows_of_samples(alignment, ids)
        for part, numbers in roll.samples.items():
            if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(known):
                raise ProtocolError(f"part '{part}': sample numbers outside the alignment")
        used = np.full(len(known), -1)
        for numbers in roll.samples.values():
            used[numbers] = known[numbers]
        block, rows = narrowed(whole, used)
        if asked.parent is None:
            preparation = fit_preparation(spec, self.name, block, rows, roll)
        else:
            preparation = read_agreed(asked.parent[0]).preparation
        terms = replace(
            terms,
            columns=preparation.columns,  # type: ignore[union-attr]
            num_rows=ids.num_rows,
            num_rows_used=int((used >= 0).sum()),
        )
        with noting_refusals(place, "assemble", home=self._home):
            policy.check(self.name, terms)
            size = num_parameters(spec, self.name, preparation, roll.names)
            policy.limits.check(self.name, {"max_parameters": size})
        features = torch.as_tensor(preparation.apply(block), dtype=getattr(torch, spec.dtype))  # type: ignore[arg-type]
        account = open_account(self._home, self._settings, policy)
        people = people_of(account, self._settings, policy, ids)
        data = OwnData(features=features, row_of_sample=rows, people=people[used[used >= 0]])
        refuse_other_data(
            place,
            _data_digest(data, roll),
            preparation,  # type: ignore[arg-type]
            self.name,
        )
        agreed = AgreedRun(
            spec=spec,
            names=roll.names,
            num_outputs=num_outputs,
            alignment=digest,
            preparation=preparation,  # type: ignore[arg-type]
        )
        write_agreed(place, agreed)
        told = hashlib.sha256(f"{asked.common}\n{digest}\n{num_outputs}\n".encode())
        told.update(_roll_digest(roll))
        party = build_party(
            spec,
            self.name,
            preparation=preparation,
            data=data,
            roll=roll,
            plans=plans,
            everyone=roll.names,
            num_outputs=num_outputs,
            doors=doors,
            own=OwnTerms(
                budget=policy.budget,
                account=account,
                largest_gradient=policy.largest_gradient,
                signer=lambda: own_signer(self._home),
                verifier=lambda: peers_of(self.name, self._home, policy.peers),
                sums=policy.sum_rules(doors.masked, told.digest()),
                seed=None if self._settings.common_seed else own_seed(self._home, place.name),
            ),
        )
        most = policy.limits.max_local_steps
        party.step_rules = StepRules(self.name, min(most, policy.steps_per_release or most))
        if asked.parent is not None:
            load_weights(party, *asked.parent)
        limits = policy.limits
        party.settle_in(
            BoundedVault(place, party=self.name, most=limits.max_checkpoints),
            Ledger(
                place,
                run=place.name,
                party=self.name,
                most_bytes=limits.max_ledger_megabytes * 1_000_000,
            ),
        )
        return party, ids.num_rows


def _data_digest(data: OwnData, roll: Roll) -> str:
    """A hash over prepared features, the row of every sample, and the roll."""
    found = hashlib.sha256(f"{tuple(data.features.shape)}".encode())
    found.update(data.features.contiguous().numpy().tobytes())
    found.update(data.row_of_sample.tobytes())
    found.update(_roll_digest(roll))
    return found.hexdigest()


def _roll_digest(roll: Roll) -> bytes:
    """A hash over names, samples and presence of every part."""
    found = hashlib.sha256(f"{roll.names}".encode())
    for part in sorted(roll.samples):
        found.update(f"\n{part} {len(roll.samples[part])}\n".encode())
        found.update(roll.samples[part].tobytes() + roll.presence[part].tobytes())
    return found.digest()
