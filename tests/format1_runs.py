"""What the runs in tests/fixtures were trained on; Colonnade wrote them at revision fc54316664.

They have format 1. Never write them anew: they are there because later revisions write other files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

__all__ = ["FIXTURES", "SETTINGS", "tables"]

FIXTURES = Path(__file__).parent / "fixtures"

_SMALL = {
    "encoder": {"kind": "mlp", "hidden": [3], "embedding": 2},
    "optimizer": {"name": "adam", "lr": 0.01},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "format1-run": {"defaults": _SMALL},
    "format1-protected-run": {
        "defaults": _SMALL,
        "party": {"telco": {"protect": [{"kind": "perturb", "noise": 2.0}]}},
    },
}


def tables() -> tuple[dict[str, pd.DataFrame], pd.Series[Any]]:
    """Two parties with two columns each, and their label."""
    grid = np.arange(160).reshape(40, 4)
    values = np.sin(grid * 1.7) + np.cos(grid**2 * 0.31)
    ids = [f"c{number:02}" for number in range(40)]
    table = pd.DataFrame(values, index=ids, columns=["age", "balance", "calls", "bytes"])
    labels = pd.Series((values[:, 0] + values[:, 2] > 0).astype(int), index=ids, name="risk")
    return {"bank": table[["age", "balance"]], "telco": table[["calls", "bytes"]]}, labels
