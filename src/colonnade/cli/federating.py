"""The commands of a federation between organisations: its members, and a party's agent."""

from __future__ import annotations

import importlib.util
import json
import signal
import threading
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from colonnade.core.errors import ConfigError

__all__ = ["federation", "party"]

federation = typer.Typer(
    help="A federation: its authority, invitations and members.", no_args_is_help=True
)
party = typer.Typer(help="A party: join a federation and run its agent.", no_args_is_help=True)

Directory = Annotated[Path, typer.Argument(help="The federation's directory.")]
PartyName = Annotated[str, typer.Argument(help="The party's name.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _require_network() -> None:
    needed = ("grpc", "cryptography", "prometheus_client")
    absent = [name for name in needed if not importlib.util.find_spec(name)]
    if absent:
        raise ConfigError(
            f"{absent[0]} is not installed; install it with: pip install 'colonnade[network]'"
        )


@federation.command("init")
def init(
    directory: Annotated[Path, typer.Argument(help="A new directory.")],
    name: Annotated[str, typer.Option(help="The label holder's name.")],
    address: Annotated[
        str, typer.Option(help="Where parties reach the hub.", metavar="HOST:PORT")
    ] = "127.0.0.1:7443",
    enrolment: Annotated[
        str | None,
        typer.Option(help="Where they join; the next port if not given.", metavar="HOST:PORT"),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(help="What the hub binds, such as 0.0.0.0; the address if not given."),
    ] = None,
    days: Annotated[int, typer.Option(help="How long a certificate lasts.")] = 90,
) -> None:
    """Make a federation: its certificate authority and the hub's own identity.

    Example:  colonnade federation init bank-federation --name bank --address hub.bank.example:7443
    """
    _require_network()
    from colonnade.federate.federation import Federation, FederationSettings, split_address

    host, port = split_address(address, "--address")
    shown = f"[{host}]" if ":" in host else host
    settings = FederationSettings(
        name=name,
        address=address,
        enrolment=enrolment or f"{shown}:{port + 1}",
        listen=listen,
        certificate_days=days,
    )
    Federation.create(directory, settings)
    _say(f"federation of '{name}' in {directory}; parties reach it at {address}")
    _say(f"keep {directory / 'authority.key.pem'} safe: whoever has it can admit anybody")
    _say(f"next: colonnade federation invite {directory} PARTY")


@federation.command("invite")
def invite(
    directory: Directory,
    name: PartyName,
    valid: Annotated[str, typer.Option(help="How long it is good: 7d, 12h, 30m.")] = "7d",
    out: Annotated[
        Path | None, typer.Option(help="The file to write; PARTY.invitation if not given.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Invite a member anew, e.g. after it lost its key.")
    ] = False,
) -> None:
    """Write a one-time invitation for a party.

    Example:  colonnade federation invite bank-federation telco --valid 7d
    """
    _require_network()
    from colonnade.federate.federation import Federation
    from colonnade.federate.invitations import invite as make
    from colonnade.federate.invitations import parse_duration

    file = out or Path(f"{name}.invitation")
    opened = Federation(directory)
    lasting = parse_duration(valid, "--valid")
    invitation = make(opened, name, file, valid=lasting, replace_member=replace)
    _say(
        f"invitation of '{name}' in {file}, good once and until "
        f"{invitation.expiry:%Y-%m-%d %H:%M} UTC; hand it over where nobody else can read it"
    )
    _say(f"the hub takes it at {invitation.enrolment}: colonnade federation enrol {directory}")


@federation.command("enrol")
def enrol(
    directory: Directory,
    renewals: Annotated[
        bool,
        typer.Option("--renewals", help="Renew certificates too, at the hub's own address."),
    ] = False,
) -> None:
    """Answer parties that join, until Ctrl-C.

    Example:  colonnade federation enrol bank-federation
    """
    _require_network()
    from colonnade.federate.enrolment import EnrolmentService
    from colonnade.federate.logs import log_to
    from colonnade.federate.renewal import RenewalService

    services: dict[str, Any] = {"enrolment": EnrolmentService(directory)}
    if renewals:
        services["renewal"] = RenewalService(directory)
    log_to()
    is_over = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: is_over.set())
    started: list[Any] = []
    try:
        for about, service in services.items():
            service.start()
            started.append(service)
            _say(f"{about} at {service.address}; Ctrl-C ends it")
        # A wait with an end lets signals in between.
        while not is_over.wait(1.0):
            pass
    except KeyboardInterrupt:
        pass
    finally:
        for service in started:
            service.stop()
        signal.signal(signal.SIGTERM, before)
    _say("stopped")


@federation.command("train")
def train(
    directory: Directory,
    config: Annotated[Path, typer.Argument(help="A TOML file that describes the run.")],
    out: Annotated[
        Path | None, typer.Option(help="The run's directory; runs/NAME_OF_CONFIG if not given.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on after the last checkpoint.")
    ] = False,
) -> None:
    """Open the hub and train with the agents of all parties that a TOML file names.

    Parties may come later, be cut off or be restarted meanwhile; --resume goes on after this
    process itself was stopped or killed.

    Example:  colonnade federation train bank-federation credit.toml --out runs/credit
    """
    _require_network()
    from colonnade.cli.progress import say_ending, watching
    from colonnade.fabrics import GrpcSpec
    from colonnade.federate.federation import Federation
    from colonnade.federate.hub import train_over
    from colonnade.federate.logs import log_to
    from colonnade.federate.opening import open_hub
    from colonnade.run.spec import read_spec

    spec = read_spec(config)
    run_directory = out or Path("runs") / config.stem
    name = Federation(directory).settings.name
    links = spec.fabric.link if isinstance(spec.fabric, GrpcSpec) else None
    log_to()
    with open_hub(directory, links=links) as hub, watching(spec.method.info.name) as lines:
        summary = train_over(hub, spec, name, run_directory, resume=resume, watcher=lines, say=_say)
    say_ending(summary, run_directory)
    quality = summary["quality"].get("test") or summary["quality"].get("validation") or {}
    reached = quality.get(summary["quality_name"])
    shown = "" if reached is None else f", {summary['quality_name']} {reached:.3f}"
    _say(f"{summary['exchanges']} exchanges{shown}; in {run_directory}")


@federation.command("revoke")
def revoke(directory: Directory, name: PartyName) -> None:
    """Accept a party no more; a hub that runs knows at once.

    Example:  colonnade federation revoke bank-federation telco
    """
    _require_network()
    from colonnade.federate.federation import Federation
    from colonnade.federate.invitations import revoke as end

    num_certificates, num_invitations = end(Federation(directory), name)
    what = [f"its identity ({num_certificates})"] if num_certificates else []
    what += [f"its open invitation ({num_invitations})"] if num_invitations else []
    _say(f"'{name}' is revoked: {' and '.join(what)}")


@federation.command("list")
def members(directory: Directory, as_json: AsJson = False) -> None:
    """List members, open invitations and revocations.

    Example:  colonnade federation list bank-federation
    """
    _require_network()
    from colonnade.federate.federation import Federation
    from colonnade.federate.invitations import standing

    rows = standing(Federation(directory))
    if as_json:
        _say(json.dumps(rows, indent=2))
        return
    table = Table("party", "is", "since", "expires")
    for row in rows:
        table.add_row(*(row[key] or "" for key in ("party", "is", "since", "expires")))
    Console().print(table)


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
        str | None,
        typer.Option(help="Where health and metrics are told.", metavar="HOST:PORT"),
    ] = None,
    no_run: Annotated[bool, typer.Option("--no-run", help="Enrol only.")] = False,
) -> None:
    """Join a federation with an invitation, and run the agent.

    Example:  colonnade party join telco.invitation --data customers.parquet --id customer_id
    """
    _require_network()
    from colonnade.federate.joining import join as enter

    joined = enter(
        invitation, data=data, id_column=id_column, home=home, policy=policy, health=health
    )
    summary = joined.data
    _say(f"{data}: {summary.num_rows:,} rows, {len(summary.columns)} columns besides the id")
    if summary.num_duplicates:
        _say(
            f"warning: {summary.num_duplicates:,} rows repeat an id; training takes one row per id"
        )
    how = "joined" if joined.is_new else "had joined before:"
    settings = joined.settings
    _say(f"'{settings.name}' {how} the federation of '{settings.label_holder}' in {joined.home}")
    if no_run:
        _say(f"next: colonnade party run {joined.home}")
        return
    _run(joined.home)


@party.command("key")
def key(home: Annotated[Path, typer.Argument(help="The party's directory.")]) -> None:
    """Print a party's public signing key, for the policies of other parties.

    Blinding needs it there, and it must reach them some other way than through the label holder.

    Example:  colonnade party key telco-home
    """
    _require_network()
    from colonnade.federate.home import read_party
    from colonnade.federate.peers import own_signer

    read_party(home)
    _say(own_signer(home).public.hex())


@party.command("run")
def run(home: Annotated[Path, typer.Argument(help="The party's directory.")]) -> None:
    """Run a party's agent in the foreground, until SIGTERM or Ctrl-C.

    Example:  colonnade party run telco
    """
    _require_network()
    _run(home)


def _run(home: Path) -> None:
    from colonnade.federate.home import read_party
    from colonnade.federate.logs import log_to

    log_to(party=read_party(home).name)
    from colonnade.federate.agent import run_agent

    run_agent(home)


def _say(line: str) -> None:
    Console(soft_wrap=True, highlight=False, markup=False).print(line)
