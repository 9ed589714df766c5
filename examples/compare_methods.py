"""Five methods on the same columns, with one party behind a slow link: quality, bytes, time.

Time is that of a simulated clock, without the first uploads of asynchronous methods. Run it with:
python examples/compare_methods.py
"""

from __future__ import annotations

import pandas as pd
from sklearn.datasets import load_digits

import colonnade

METHODS = ("splitnn", "fedbcd", "cvfl", "vafl", "flex")
# The shop is a quarter of a second away, in each direction. Ticks are milliseconds.
SLOW_LINK = {
    "name": "simulated",
    "default": {"encode": 2, "step": 2, "latency": 10},
    "party": {"shop": {"latency": 250}},
}


def compare(epochs: int) -> pd.DataFrame:
    """Train every method on handwritten digits whose rows of pixels belong to three owners.

    Args:
        epochs: Passes over the training samples.

    Returns:
        One row a method.
    """
    pixels, label = load_digits(return_X_y=True, as_frame=True)
    pixels = pixels.loc[:, pixels.nunique() > 1]  # some pixels are never inked
    pixels.index = label.index = [f"s{number}" for number in range(len(pixels))]
    owners = {"bank": slice(0, 20), "telco": slice(20, 40), "shop": slice(40, None)}
    blocks = {name: pixels.iloc[:, columns] for name, columns in owners.items()}
    rows = []
    for method in METHODS:
        settings = {"fabric": SLOW_LINK}
        result = colonnade.fit(
            blocks,
            label,
            label_holder="bank",
            task="multiclass",
            method=method,
            epochs=epochs,
            settings=settings,
        )
        found = result.summary
        num_bytes = sum(found["bytes_up"].values()) + sum(found["bytes_down"].values())
        rows.append(
            {
                "method": method,
                "accuracy": round(found["quality"]["test"]["accuracy"], 3),
                "exchanges": found["exchanges"],
                "megabytes": round(num_bytes / 1e6, 1),
                "seconds": round(found["elapsed_seconds"], 1),
            }
        )
    return pd.DataFrame(rows).set_index("method")


if __name__ == "__main__":
    print(compare(epochs=10).to_string())
