"""Commands that train, evaluate, predict and report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from colonnade.cli.progress import human_bytes, say_ending, watching
from colonnade.core.errors import ConfigError
from colonnade.files import write_atomically

__all__ = ["evaluate", "predict", "report", "train"]

RunArgument = Annotated[Path, typer.Argument(help="The run's directory.", show_default=False)]


def train(
    config: Annotated[Path, typer.Argument(help="A TOML file that describes the run.")],
    out: Annotated[
        Path | None, typer.Option(help="The run's directory; runs/NAME_OF_CONFIG if not given.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on after the last checkpoint.")
    ] = False,
    start: Annotated[
        Path | None,
        typer.Option("--from", help="Begin with the weights of this run; new parties join it."),
    ] = None,
) -> None:
    """Train as a TOML file says, into a run directory.

    Ctrl-C stops after the exchange under way; --resume goes on, bit for bit as if uninterrupted.

    Example:  colonnade train credit.toml --out runs/credit
    """
    from colonnade.run.engine import train as train_run
    from colonnade.run.spec import read_spec

    spec = read_spec(config)
    if start is not None:
        spec = replace(spec, start=replace(spec.start, run=start.resolve()))
    directory = out or Path("runs") / config.stem
    with watching(spec.method.info.name) as lines:
        result = train_run(spec, directory=directory, resume=resume, watcher=lines)
    summary = result.summary
    say_ending(summary, directory)
    known = sum(summary["num_samples"].values())
    left_out = {name: count - known for name, count in summary["num_rows"].items() if count > known}
    if left_out:
        counts = ", ".join(f"{name} {count}" for name, count in left_out.items())
        tolerant = spec.method.info.tolerates_missing
        why = "no block of them is there" if tolerant else "not everybody knows them"
        _say(f"left out, because {why}: {counts} (rows by owner)")
    for warning in summary["warnings"]:
        _say(f"warning: {warning}")
    moved = sum(summary["bytes_up"].values()) + sum(summary["bytes_down"].values())
    _say(f"{result!r}: {summary['exchanges']} exchanges, {human_bytes(moved)}; in {directory}")


def evaluate(
    run: RunArgument,
    part: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a trained run on its own held-out samples.

    Example:  colonnade evaluate runs/credit --part test
    """
    from colonnade.run.engine import reopen

    result = reopen(run)
    metrics = result.evaluate(part=part)
    if as_json:
        _say(json.dumps(metrics, indent=2))
        return
    if result.left:
        _say(f"without {', '.join(result.left)}, who left")
    for name, value in metrics.items():
        _say(f"{name:<12} {value:.4f}")


def predict(
    run: RunArgument,
    block: Annotated[
        list[str],
        typer.Option(help="A party's new samples; once per party.", metavar="PARTY=FILE"),
    ],
    out: Annotated[Path, typer.Option(help="Where to write the predictions (CSV).")],
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
    from colonnade.run.result import Result
    from colonnade.run.spec import read_spec

    result = Result.load(run)
    spec = read_spec(run / "config.json")
    blocks = {}
    for item in block:
        name, separator, file = item.partition("=")
        if not separator:
            raise ConfigError(f"--block {item}: write it as PARTY=FILE")
        if name not in result.parties:
            raise ConfigError(f"--block {item}: no such party; there are {list(result.parties)}")
        known = spec.party.get(name)
        ids = id_column or (known.id if known else None)
        if ids is None:
            raise ConfigError(f"--id: missing; say which column of {file} has the sample ids")
        blocks[name] = read_block(name, Path(file), id_column=ids)
    predicted: Any
    if probabilities:
        predicted = result.predict_proba(blocks, model=model)
    elif spec.method.info.tolerates_missing and model is None:
        predicted = result.answer(blocks)
        predicted["blocks"] = ["; ".join(names) for names in predicted["blocks"]]
    else:
        predicted = result.predict(blocks, model=model).to_frame()
    write_atomically(out, predicted.to_csv(index_label=ids).encode())
    _say(f"{len(predicted)} predictions in {out}")


def report(
    run: RunArgument,
    out: Annotated[
        Path | None, typer.Option(help="The page; report.html in the run directory if not given.")
    ] = None,
) -> None:
    """Write a self-contained HTML page about a run, also while it is still going.

    Example:  colonnade report runs/credit
    """
    from colonnade.report import write_report

    _say(f"report in {write_report(run, out)}")


def _say(line: str) -> None:
    Console(soft_wrap=True, highlight=False, markup=False).print(line)
