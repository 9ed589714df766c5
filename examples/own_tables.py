"""Two tables of your own to a model that predicts, saves and loads: python examples/own_tables.py"""

from __future__ import annotations

import tempfile
from pathlib import Path

from sklearn.datasets import load_breast_cancer

import colonnade


def main(directory: Path, epochs: int = 20) -> None:
    """Train, predict five samples, and predict them again with the saved model.

    Args:
        directory: Where the model is saved.
        epochs: Passes over the training samples.
    """
    table, label = load_breast_cancer(return_X_y=True, as_frame=True)
    # The index holds the sample ids. Rows are matched by it, never by their order.
    table.index = label.index = [f"patient-{number}" for number in range(len(table))]
    clinic = table.filter(like="mean ")
    pathology = table.filter(like="worst ").sample(frac=1, random_state=0)

    result = colonnade.fit(
        {"clinic": clinic, "pathology": pathology}, label, label_holder="clinic", epochs=epochs
    )
    print(result)
    new = {"clinic": clinic.head(), "pathology": pathology.loc[clinic.index[:5]]}
    predicted = result.predict(new)
    print(predicted)

    result.save(directory / "model")
    again = colonnade.Result.load(directory / "model").predict(new)
    assert list(again) == list(predicted)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(Path(directory))
