"""``colonnade predict``: predict new samples with a trained run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from colonnade.cli.console import RunDirectory, refuse_networked, say
from colonnade.core.config import nearest
from colonnade.core.errors import ConfigError

__all__ = ["predict"]


def predict(
    run: RunDirectory,
    block: Annotated[
        list[str], typer.Option(help="A party's new samples; once per party.", metavar="PARTY=FILE")
    ],
    out: Annotated[Path, typer.Option(help="Where to write the predictions (CSV, Parquet).")],
    id_column: Annotated[
        str | None, typer.Option("--id", help="Id column of the files, if not as in training.")
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="One column per class, not the label.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(help="Whose model, where every party has its own.", metavar="PARTY"),
    ] = None,
) -> None:
    """Predict new samples with a trained run.

    With a method that can do without blocks, parties may be left out and files may have different
    samples; the predictions then say how sure they are and from which blocks they come.

    Example:  colonnade predict runs/credit --block bank=new_bank.csv --block telco=new_telco.csv
    --out predictions.csv
    """
    from colonnade.data.blocks import read_block
    from colonnade.data.table_files import write_table
    from colonnade.run.result import Result
    from colonnade.run.spec import read_spec

    refuse_networked(run, "predict", "--ids FILE --out FILE")
    result = Result.load(run)
    spec = read_spec(run / "config.json")
    blocks = {}
    for item in block:
        name, separator, file = item.partition("=")
        if not separator:
            raise ConfigError(f"--block {item}: write it as PARTY=FILE")
        if name not in result.parties:
            raise ConfigError(
                f"--block {item}: no party '{name}'{nearest(name, list(result.parties))}"
            )
        known = spec.party.get(name)
        ids = id_column or (known.id if known else None)
        if ids is None:
            raise ConfigError(f"--id: missing; say which column of {file} has the sample ids")
        blocks[name] = read_block(
            name, Path(file).expanduser(), id_column=ids, csv=spec.csv_of(name)
        )
    predicted: Any
    if probabilities:
        predicted = result.predict_proba(blocks, model=model)
    elif spec.method.info.tolerates_missing and model is None:
        predicted = result.answer(blocks)
        predicted["blocks"] = ["; ".join(names) for names in predicted["blocks"]]
    else:
        predicted = result.predict(blocks, model=model).to_frame()
    write_table(predicted.rename_axis(index=ids), out)
    say(f"{len(predicted)} predictions in {out}")
