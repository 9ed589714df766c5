"""``colonnade party``: join a federation, run its agent, leave a trained run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.console import RunDirectory, require_network, say

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
def run(home: Home) -> None:
    """Run a party's agent in the foreground, until SIGTERM or Ctrl-C.

    Example:  colonnade party run telco
    """
    require_network()
    _run(home)


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

    read_party(home)
    days = parse_duration(older, "--older").total_seconds() / 86_400
    pruned = let_go(home, days=days, keep=keep or ())
    for name in pruned.runs:
        say(f"run {name}: weights and settings deleted, its ledger stays")
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
    how_well = f"colonnade evaluate {run} says how well"
    say(f"{name} left {run}, {kept}; {', '.join(stay)} predict on ({how_well})")


def _run(home: Path) -> None:
    from colonnade.federate.logs import log_to
    from colonnade.federate.party_home import read_party

    log_to(party=read_party(home).name)
    from colonnade.federate.party_agent import run_agent

    run_agent(home)
