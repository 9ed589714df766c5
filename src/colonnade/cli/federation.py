"""``colonnade federation``: a federation's authority, invitations, members and trainings."""

from __future__ import annotations

import json
import signal
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from colonnade.cli.console import (
    AsJson,
    Config,
    Log,
    NewRun,
    Resume,
    RunDirectory,
    require_network,
    say,
)
from colonnade.cli.federation_record import audit, backup, restore
from colonnade.cli.federation_serve import serve
from colonnade.cli.watch import Live, live_page

__all__ = ["federation"]

federation = typer.Typer(
    help="A federation: its authority, invitations and members.", no_args_is_help=True
)

Directory = Annotated[Path, typer.Argument(help="The federation's directory.")]
PartyName = Annotated[str, typer.Argument(help="The party's name.")]


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
    serving: Annotated[
        str | None,
        typer.Option(
            help="Where they serve beside a training; two ports on if not given.",
            metavar="HOST:PORT",
        ),
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
    require_network()
    from colonnade.federate.federation_directory import (
        FederationDirectory,
        FederationSettings,
        split_address,
    )

    host, _, _ = address.rpartition(":")
    _, port = split_address(address, "--address")
    settings = FederationSettings(
        name=name,
        address=address,
        enrolment=enrolment or f"{host}:{port + 1}",
        serving=serving or f"{host}:{port + 2}",
        listen=listen,
        certificate_days=days,
    )
    FederationDirectory.create(directory, settings)
    say(f"federation of '{name}' in {directory}; parties reach it at {address}")
    say(f"keep {directory / 'authority.key.pem'} safe: whoever has it can admit anybody")
    say(f"next: colonnade federation invite {directory} PARTY")


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
    require_network()
    from colonnade.federate.federation_directory import FederationDirectory
    from colonnade.federate.invitations import invite as make
    from colonnade.federate.invitations import parse_duration

    file = out or Path(f"{name}.invitation")
    opened = FederationDirectory(directory)
    lasting = parse_duration(valid, "--valid")
    invitation = make(opened, name, file, valid=lasting, replace_member=replace)
    say(
        f"invitation of '{name}' in {file}, good once and until "
        f"{invitation.expiry:%Y-%m-%d %H:%M} UTC; hand it over where nobody else can read it"
    )
    say(f"the hub takes it at {invitation.enrolment}: colonnade federation enrol {directory}")


@federation.command("enrol")
def enrol(
    directory: Directory,
    renewals: Annotated[
        bool, typer.Option("--renewals", help="Renew certificates too, at the hub's own address.")
    ] = False,
) -> None:
    """Answer parties that join, until Ctrl-C.

    Example:  colonnade federation enrol bank-federation
    """
    require_network()
    from colonnade.federate.enrolment import enrolment_service
    from colonnade.federate.logs import log_to
    from colonnade.federate.renewal import renewal_service

    services = {"enrolment": enrolment_service(directory)}
    if renewals:
        services["renewal"] = renewal_service(directory)
    log_to()
    is_over = threading.Event()
    with ExitStack() as around, suppress(KeyboardInterrupt):
        before = signal.signal(signal.SIGTERM, lambda *_: is_over.set())
        around.callback(signal.signal, signal.SIGTERM, before)
        for about, service in services.items():
            service.start()
            around.callback(service.stop)
            say(f"{about} at {service.address}; Ctrl-C ends it")
        # A wait with an end lets signals in between.
        while not is_over.wait(1.0):
            pass
    say("stopped")


@federation.command("train")
def train(
    directory: Directory,
    config: Config,
    out: NewRun = None,
    resume: Resume = False,
    live: Live = False,
    log: Log = None,
) -> None:
    """Open the hub and train with the agents of all parties that a TOML file names.

    Parties may come later, be cut off or be restarted meanwhile; --resume goes on after this
    process itself was stopped or killed.

    Example:  colonnade federation train bank-federation credit.toml --out runs/credit
    """
    require_network()
    from colonnade.cli.progress import say_ending, watching
    from colonnade.fabrics import GrpcSpec
    from colonnade.federate.federation_directory import FederationDirectory
    from colonnade.federate.logs import log_to
    from colonnade.federate.opened_hub import open_hub
    from colonnade.federate.training import train_over
    from colonnade.run.kept_seals import SEALS
    from colonnade.run.run_shelf import check_room
    from colonnade.run.spec import read_spec

    spec = read_spec(config)
    run_directory = out or Path("runs") / config.stem
    settings = FederationDirectory(directory).settings
    if not resume:
        check_room(run_directory.parent, settings.max_kept_megabytes)
    links = spec.fabric.link if isinstance(spec.fabric, GrpcSpec) else None
    log_to(log)
    page = live_page(run_directory, wanted=live)
    with page, open_hub(directory, links=links) as hub, watching(spec.method.info.name) as lines:
        summary = train_over(
            hub,
            spec,
            settings.name,
            run_directory,
            resume=resume,
            watcher=lines,
            say=say,
            alignments=directory / "alignments",
            seals=directory / SEALS,
        )
    say_ending(summary, run_directory)
    quality = summary["quality"].get("test") or summary["quality"].get("validation") or {}
    reached = quality.get(summary["quality_name"])
    shown = "" if reached is None else f", {summary['quality_name']} {reached:.3f}"
    say(f"{summary['exchanges']} exchanges{shown}; in {run_directory}")


Wait = Annotated[
    float, typer.Option(help="Seconds to wait for parties that are not connected.", min=0.0)
]


@federation.command("predict")
def predict(
    directory: Directory,
    run: RunDirectory,
    ids: Annotated[Path, typer.Option(help="A table with the ids of the samples (CSV, Parquet).")],
    out: Annotated[Path, typer.Option(help="Where to write the predictions (CSV, Parquet).")],
    id_column: Annotated[
        str | None, typer.Option("--id", help="Id column of the file, if not as in training.")
    ] = None,
    wait: Wait = 30.0,
) -> None:
    """Predict new or known samples with a trained run, over the network.

    Every party answers for its own columns. Ids that no alignment knows yet are aligned privately.
    A method that can do without blocks answers without parties that are away; others end with their
    name, and the same command goes on.

    Example:  colonnade federation predict bank-federation runs/credit --ids new.csv
    --out scores.csv
    """
    require_network()
    from colonnade.federate.logs import log_to
    from colonnade.federate.networked_runs import networked_links
    from colonnade.federate.opened_hub import open_hub
    from colonnade.federate.prediction_files import predict_over

    links = networked_links(run)
    log_to()
    with open_hub(directory, links=links) as hub:
        table = predict_over(
            hub, directory, run, ids, out, id_column=id_column, wait_seconds=wait, say=say
        )
    num_without = int(table.iloc[:, 0].isna().sum())
    without = f", {num_without} of them without an answer" if num_without else ""
    say(f"{len(table)} predictions in {out}{without}")


@federation.command("evaluate")
def evaluate(
    directory: Directory,
    run: RunDirectory,
    part: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    wait: Wait = 30.0,
    as_json: AsJson = False,
) -> None:
    """Measure a trained run on its own samples, over the network.

    Example:  colonnade federation evaluate bank-federation runs/credit --part test
    """
    require_network()
    from colonnade.federate.logs import log_to
    from colonnade.federate.networked_runs import networked_links
    from colonnade.federate.opened_hub import open_hub
    from colonnade.federate.prediction_files import evaluate_over

    links = networked_links(run)
    log_to()
    with open_hub(directory, links=links) as hub:
        metrics = evaluate_over(hub, directory, run, part=part, wait_seconds=wait, say=say)
    if as_json:
        say(json.dumps(metrics, indent=2))
        return
    width = max(map(len, metrics), default=0)
    for name, value in metrics.items():
        say(f"{name:<{width}}  {value:.4f}")


federation.command("serve")(serve)


@federation.command("revoke")
def revoke(directory: Directory, name: PartyName) -> None:
    """Accept a party no more; a hub that runs knows at once.

    Example:  colonnade federation revoke bank-federation telco
    """
    require_network()
    from colonnade.federate.federation_directory import FederationDirectory
    from colonnade.federate.invitations import revoke as end

    num_certificates, num_invitations = end(FederationDirectory(directory), name)
    what = [f"its identity ({num_certificates})"] if num_certificates else []
    what += [f"its open invitation ({num_invitations})"] if num_invitations else []
    say(f"'{name}' is revoked: {' and '.join(what)}")


@federation.command("requests")
def requests(
    directory: Directory,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("requests.json"),
) -> None:
    """Export what waits for the authority's key, where that is kept away from the hub.

    Example:  colonnade federation requests bank-federation --out requests.json
    """
    require_network()
    from colonnade.federate.federation_directory import FederationDirectory
    from colonnade.federate.offline_signing import write_file

    exported = FederationDirectory(directory).export_requests()
    if not exported.requests:
        say("nothing waits to be signed")
        return
    write_file(out, exported)
    say(f"{len(exported.requests)} requests in {out}; sign them where the key is:")
    say(f"colonnade federation sign {out} --authority DIRECTORY_WITH_THE_KEY --out signed.json")


@federation.command("sign")
def sign(
    file: Annotated[Path, typer.Argument(help="A file of requests.")],
    authority: Annotated[
        Path, typer.Option(help="A directory with authority.pem and authority.key.pem.")
    ],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("signed.json"),
) -> None:
    """Sign requests where the authority's key is; it needs no network.

    Example:  colonnade federation sign requests.json --authority vault --out signed.json
    """
    require_network()
    from colonnade.federate.certificates import key_print
    from colonnade.federate.offline_signing import (
        read_authority,
        read_requests,
        sign_requests,
        write_file,
    )

    asked = read_requests(file)
    write_file(out, sign_requests(asked, read_authority(authority)))
    for item in asked.requests:
        say(f"signed: {item.role} '{item.name}', key {key_print(item.key)[:16]}, {item.days} days")
    say(f"in {out}; at the hub: colonnade federation admit DIRECTORY {out}")


@federation.command("admit")
def admit(
    directory: Directory,
    file: Annotated[Path, typer.Argument(help="A file of certificates.")],
) -> None:
    """Import certificates that were signed away from the hub.

    Example:  colonnade federation admit bank-federation signed.json
    """
    require_network()
    from colonnade.federate.federation_directory import FederationDirectory
    from colonnade.federate.offline_signing import read_signed

    names = FederationDirectory(directory).import_signed(read_signed(file))
    say(f"imported for {', '.join(names)}; each gets its certificate when it asks again")


for _name, _command in (("audit", audit), ("backup", backup), ("restore", restore)):
    federation.command(_name)(_command)


@federation.command("list")
def members(directory: Directory, as_json: AsJson = False) -> None:
    """List members, open invitations and revocations.

    Example:  colonnade federation list bank-federation
    """
    require_network()
    from colonnade.federate.federation_directory import FederationDirectory
    from colonnade.federate.invitations import membership_rows

    rows = membership_rows(FederationDirectory(directory))
    if as_json:
        say(json.dumps(rows, indent=2))
        return
    table = Table("party", "is", "since", "expires")
    for row in rows:
        table.add_row(*(row[key] or "" for key in ("party", "is", "since", "expires")))
    Console().print(table)
