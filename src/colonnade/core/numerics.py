"""The number of the numerics: it changes whenever seeded weights change.

Two runs with the same settings, seed and numerics end with the same weights. A result says which
numerics it was measured with; one of other numerics is stale. Parties train together only with the
same ones, since each derives batches and draws for itself.
"""

from __future__ import annotations

__all__ = ["NUMERICS", "SEEDED_RUNS"]

# By number the SHA-256 of tests/golden/seeded_runs.json, which has the numbers that seeded runs of
# every method end with. Whoever changes an existing number there adds an entry here. A case that
# is new changes the hash of the last entry only.
SEEDED_RUNS = {
    # Before decision 13: the last batch of an epoch was what was left. No seeded runs were kept.
    1: "",
    2: "a12aee463895d6c1eb5e4db83c4b6b6b7d45d300662f9243088905c5ae45b2d5",
    # Decision 16: batches mix observed sets.
    3: "5acfd23c43f89e2395d3ce483087f5ffdda29b5becb4a7b644eeaad997e6d630",
}

NUMERICS = max(SEEDED_RUNS)
