"""``colonnade party``: join a federation, run its agent, look at it, leave a trained run."""

from __future__ import annotations

import datetime
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from colonnade.cli.console import AsJson, Log, RunDirectory, require_network, say
from colonnade.cli.party_serve import serve

__all__ = ["party"]

party = typer.Typer(help="A party: join a federation and run its agent.", no_args_is_help=True)

Home = Annotated[Path, typer.Argument(help="The party's directory.")]


@party.command("join")
def join(
    invitation: Annotated[Path, typer.Argument(help="The label holder's invitation.")],
    data: Annotated[Path, typer.Option(help="Own table: CSV or Parquet. It stays here.")],
    id_column: Annotated[str, typer.Option("--id", help="The column with the sample ids.")],
    home: Annotated[
        Path | None, typer.Option(help="Own directory; named like the party if not given.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="A policy file: what this party allows.")
    ] = None,
    health: Annotated[
        str | None, typer.Option(help="Where health and metrics are told.", metavar="HOST:PORT")
    ] = None,
    allow_unprotected: Annotated[
        bool,
        typer.Option(
            "--allow-unprotected",
            help="Yes to runs in which embeddings leave as they are, without noise or blinding.",
        ),
    ] = False,
    common_seed: Annotated[
        bool,
        typer.Option(
            "--common-seed",
            help="First weights from the label holder's seed: it can rebuild them, and columns.",
        ),
    ] = False,
    no_run: Annotated[bool, typer.Option("--no-run", help="Enrol only.")] = False,
) -> None:
    """Join a federation with an invitation, and run the agent.

    Example:  colonnade party join telco.invitation --data customers.parquet --id customer_id
    """
    require_network()
    from colonnade.federate.party_enrolment import join as enter

    joined = enter(
        invitation,
        data=data,
        id_column=id_column,
        home=home,
        policy=policy,
        health=health,
        allow_unprotected=allow_unprotected,
        common_seed=common_seed,
    )
    summary = joined.data
    say(f"{data}: {summary.num_rows:,} rows, {len(summary.columns)} columns besides the id")
    if summary.num_duplicates:
        say(f"warning: {summary.num_duplicates:,} rows repeat an id; training takes one row per id")
    how = "joined" if joined.is_new else "had joined before:"
    settings = joined.settings
    say(f"'{settings.name}' {how} the federation of '{settings.label_holder}' in {joined.home}")
    if not settings.allow_unprotected:
        say("it takes part only where its embeddings are perturbed or blinded before they leave")
    if no_run:
        say(f"next: colonnade party run {joined.home}")
        return
    _run(joined.home)


@party.command("key")
def key(home: Home) -> None:
    """Print a party's public signing key, for the policies of other parties.

    Blinding needs it there, and it must reach them some other way than through the label holder.

    Example:  colonnade party key telco-home
    """
    require_network()
    from colonnade.federate.party_home import read_party
    from colonnade.federate.peers import own_signer

    read_party(home)
    say(own_signer(home).public.hex())


@party.command("budget")
def budget(
    home: Home,
    acknowledge: Annotated[
        bool,
        typer.Option(
            "--acknowledge",
            help="An old copy was put back: raise every account to what it can have been at most.",
        ),
    ] = False,
) -> None:
    """Show what a party's releases amount to by now, by person and over all runs.

    Example:  colonnade party budget telco
    """
    require_network()
    from colonnade.federate.own_account import acknowledge_copies, told_account

    if acknowledge:
        for line in acknowledge_copies(home):
            say(line)
    for line in told_account(home):
        say(line)


@party.command("run")
def run(home: Home, log: Log = None) -> None:
    """Run a party's agent in the foreground, until SIGTERM or Ctrl-C.

    Example:  colonnade party run telco
    """
    require_network()
    _run(home, log)


@party.command("status")
def status(home: Home, as_json: AsJson = False) -> None:
    """Show a party's agent, identity, policy, table and runs in a few lines.

    Example:  colonnade party status telco
    """
    require_network()
    from colonnade.federate.party_status import party_status

    found = party_status(home)
    if as_json:
        say(json.dumps(asdict(found), indent=2))
        return
    say(f"'{found.name}' in the federation of '{found.label_holder}', hub {found.hub}")
    say(f"agent: {found.agent}")
    say(f"certificate good until: {found.identity_expiry}")
    say(f"policy: {found.policy}")
    say(f"table: {found.data}")
    newest = f"; the newest is {found.last_run}" if found.last_run else ""
    say(
        f"runs: {found.num_runs}, {found.num_with_weights} with weights, "
        f"{found.num_bytes / 1e6:.1f} MB{newest}"
    )


@party.command("runs")
def runs(home: Home, as_json: AsJson = False) -> None:
    """List the runs that a party keeps, by readable names.

    Example:  colonnade party runs telco
    """
    require_network()
    from colonnade.federate.party_home import read_party
    from colonnade.federate.runs_at_party import kept_runs

    read_party(home)
    found = kept_runs(home)
    if as_json:
        plain = [{**asdict(run), "place": run.place.name} for run in found]
        say(json.dumps(plain, indent=2))
        return
    table = Table("run", "with", "began", "used", "weights", "MB", "on the wire")
    for run in found:
        table.add_row(
            run.name,
            ", ".join(run.participants),
            _moment(run.began),
            _moment(run.used),
            str(len(run.checkpoints)),
            f"{run.num_bytes / 1e6:.1f}",
            run.place.name[:12],
        )
    Console().print(table)


party.command("serve")(serve)


@party.command("prune")
def prune(
    home: Home,
    older: Annotated[
        str, typer.Option(help="Only what nobody used for so long: 90d, 12h.")
    ] = "90d",
    keep: Annotated[
        list[str] | None, typer.Option(help="A run that stays whatever its age; may be repeated.")
    ] = None,
) -> None:
    """Delete the weights of a party's old runs, and alignments that no run names. Ledgers stay.

    Example:  colonnade party prune telco --older 90d
    """
    require_network()
    from colonnade.federate.invitations import parse_duration
    from colonnade.federate.party_home import read_party
    from colonnade.federate.pruning import prune as let_go
    from colonnade.federate.runs_at_party import find_run, kept_runs

    read_party(home)
    days = parse_duration(older, "--older").total_seconds() / 86_400
    kept = {find_run(home, name).place.name for name in keep or ()}
    names = {run.place.name: run.name for run in kept_runs(home)}
    pruned = let_go(home, days=days, keep=kept)
    for name in pruned.runs:
        say(f"run {names.get(name, name)}: weights and settings deleted, its ledger stays")
    for digest in pruned.alignments:
        say(f"alignment {digest[:12]} deleted: no run names it")
    say(f"{pruned.num_bytes / 1e6:.1f} MB deleted")


@party.command("remove")
def remove(
    run: RunDirectory,
    name: Annotated[str, typer.Argument(help="The party that leaves.", show_default=False)],
    erase: Annotated[
        bool,
        typer.Option(
            "--erase", help="Delete its weights and statistics in the run directory as well."
        ),
    ] = False,
) -> None:
    """Let a party leave a trained run for good; the rest predict on.

    Example:  colonnade party remove runs/credit telco
    """
    from colonnade.run.leaving import remove_party

    stay = remove_party(run, name, erase=erase)
    kept = "its files there are deleted" if erase else "its files there are left alone"
    networked = (run / "run_name").exists()
    command = f"federation evaluate FEDERATION {run}" if networked else f"evaluate {run}"
    how_well = f"colonnade {command} says how well"
    say(f"{name} left {run}, {kept}; {', '.join(stay)} predict on ({how_well})")


def _moment(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%d %H:%M}"


def _run(home: Path, log: Path | None = None) -> None:
    from colonnade.federate.logs import log_to
    from colonnade.federate.party_home import read_party

    log_to(log, party=read_party(home).name)
    from colonnade.federate.party_agent import run_agent

    run_agent(home)
