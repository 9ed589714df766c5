"""A party's session for an alignment: it takes the terms and prepares the party's own ids."""

from __future__ import annotations

from dataclasses import replace

from colonnade.align.counting import FileCount
from colonnade.align.participant import AlignParty
from colonnade.align.participant_files import DirectoryStore
from colonnade.align.terms import AlignSpec
from colonnade.core.config import parse
from colonnade.core.errors import DataError, ProtocolError
from colonnade.core.verbs import verb
from colonnade.federate.alignments import KeepingStore, find_alignment, working_place
from colonnade.federate.party_sessions import (
    SessionAtParty,
    keyed_table,
    parsed_table,
    read_terms,
    write_terms,
)
from colonnade.federate.pseudonyms import agreed_key, check_mark, keep_keys, kept_key, new_share
from colonnade.run.alignment_files import load_alignment

__all__ = ["AlignSession"]


class AlignSession(SessionAtParty):
    """Takes the terms of an alignment; then the party's half of the matching answers."""

    @verb
    def agree(self, terms: str) -> int:
        """Prepare own ids under the terms; gives how many there are."""
        spec = parse(AlignSpec, parsed_table(terms, "align"), path="align")
        # Which columns are the key, what to do with duplicates and where to count is one's own.
        spec = replace(
            spec,
            columns={},
            duplicates=self._policy.duplicates,
            policy=self._policy.align,
            counts=None,
        )
        ids, _ = keyed_table(self._settings, self._policy, spec)
        write_terms(working_place(self._home, self._lane), spec)
        self._successor = AlignParty(
            name=self.name,
            ids=ids,
            spec=spec,
            store=KeepingStore(self._home, spec, self._lane),
            count=FileCount(self._home / "alignments.json"),
        )
        return len(ids)

    @verb
    def pair(self, digest: str, share: str) -> str:
        """Agree on the key of pseudonyms for an alignment that was just made; gives own share."""
        place = find_alignment(self._home, digest, self.name)
        own = new_share()
        key = agreed_key(digest, self.name, share, own)
        keep_keys(place, {self._settings.label_holder: key})
        return own

    @verb
    def holds(self, digest: str, mark: str) -> int:
        """Tell whether an alignment is kept here and still fits the table: 1 or 0.

        ``mark`` is the label holder's, of the key of pseudonyms.
        """
        try:
            place = find_alignment(self._home, digest, self.name)
            check_mark(kept_key(place, self._settings.label_holder), mark, self.name)
            ids, _ = keyed_table(self._settings, self._policy, read_terms(place))
            load_alignment(DirectoryStore(place).alignment_path, ids)
        except (DataError, ProtocolError):
            return 0
        return 1
