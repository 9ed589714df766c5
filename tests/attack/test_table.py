"""The table of attacks in docs/security.md has every attack, as its record says."""

from __future__ import annotations

import re

from attack.table import PAGE, declared, pattern_of, rows_of


def test_every_attack_has_its_row() -> None:
    """If this fails: ``python tests/attack/table.py PATH`` for new attacks, or ``make attacks``."""
    rows = rows_of(PAGE.read_text("utf-8"))
    records = {record["what"]: record for _, record in declared()}
    assert rows.keys() == records.keys()
    for what, record in records.items():
        assert record["before"] in rows[what], what
        assert re.search(pattern_of(record["now"]), rows[what]), what
