"""A federation's hub with enrolment and renewals beside it; revoked parties are cut off."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from colonnade.core.errors import ColonnadeError, IdentityRefused, RunError, StorageError
from colonnade.fabrics.grpc.front import FrontLimits
from colonnade.fabrics.grpc.hub import Hub
from colonnade.fabrics.grpc.identity import Identity
from colonnade.fabrics.grpc.link_settings import LinkSpec
from colonnade.federate.admission import BEHIND, Admission
from colonnade.federate.certificates import Now, now
from colonnade.federate.enrolment import enrolment_service
from colonnade.federate.federation_directory import FederationDirectory
from colonnade.federate.health_endpoints import listening_for_probes
from colonnade.federate.hub_service import HubService
from colonnade.federate.identities import is_renewal_due
from colonnade.federate.precedence import GivesWay, served_here
from colonnade.federate.record_witness import witness_handler
from colonnade.federate.renewal import renewal_handler

__all__ = ["open_hub"]

_LOG = logging.getLogger("colonnade.membership")


@contextmanager
def open_hub(
    directory: Path,
    *,
    links: LinkSpec | None = None,
    address: str | None = None,
    enrolment_address: str | None = None,
    enrols: bool = True,
    serves: bool = False,
    check_seconds: float = 1.0,
    now: Now = now,
) -> Iterator[Hub]:
    """Open the hub of a federation's directory, at the addresses of its settings by default.

    Parties that are revoked, or that enrol again, are cut off within ``check_seconds``; the
    hub's own certificate is replaced in time. ``enrols`` is False where ``colonnade federation
    enrol`` runs beside it. A hub that ``serves`` listens at the address for that, where it keeps
    clear of a hub that trains. Meanwhile the threads that opened other hubs of the federation on
    this machine give way to it.
    """
    federation, admission = FederationDirectory(directory, now=now), Admission(directory, now=now)
    own, settings = federation.hub_identity(), federation.settings
    record = federation.record

    def admit(pem: bytes) -> str:
        try:
            name = admission(pem)
        except IdentityRefused as error:
            _recorded(record.note_refusal, reason=error.reason, asked="admission")
            raise
        _recorded(record.note, "admitted", party=name)
        return name

    hub = Hub(
        identity=own,
        admit=admit,
        address=address or (settings.listen_serving if serves else settings.listen_address),
        links=links,
        handlers=(renewal_handler(directory, now=now), witness_handler(directory, now=now)),
        front=FrontLimits(),
        note=lambda event, fields: record.note(event, **fields),
    )
    is_over = threading.Event()

    def watch_register() -> None:
        shown = own
        while not is_over.wait(check_seconds):
            service.waits.look(hub.owed_seconds())
            if gives_way is not None:
                gives_way.look()
            try:
                for name, message in admission.newly_refused().items():
                    _LOG.warning("cut off", extra={"fields": {"party": name}})
                    hub.disconnect(name, message)
                shown = _renewed(federation, hub, shown)
                if record.is_behind:
                    _cut_everybody(hub)
                    raise RunError(BEHIND)
            except ColonnadeError as error:
                because = f"the register can't be trusted: {error}"
                if service.failure != because:
                    _LOG.error("%s", because)
                service.failure = because
            else:
                service.failure = None

    assert hub.front is not None
    fronts = {"hub": hub.front.status}
    service = HubService(hub, fronts)
    watching = threading.Thread(target=watch_register, name="membership", daemon=True)
    with ExitStack() as around:
        around.callback(hub.close)
        # The hub has its threads by now: links stay alive at the usual priority.
        gives_way = None if serves else GivesWay(directory)
        if gives_way is None:
            around.enter_context(served_here(directory))
        else:
            around.callback(gives_way.close)
        if enrols:
            enrolment = enrolment_service(directory, address=enrolment_address, now=now)
            enrolment.start()
            fronts["enrolment"] = enrolment.front.status
            around.callback(enrolment.stop)
        # A hub that serves tells its health at any free port: the one in the settings is taken.
        probes = "127.0.0.1:0" if serves and settings.serving else settings.health
        told = listening_for_probes(service, probes, "federation.toml")
        host, port = around.enter_context(told)
        _LOG.info("the hub runs", extra={"fields": {"health": f"{host}:{port}"}})
        watching.start()
        around.callback(watching.join)
        around.callback(is_over.set)
        try:
            yield hub
        except Exception as error:
            # What ends it is an error in its log, not only in a terminal.
            _LOG.error("the hub ends: %s", error, exc_info=error)
            raise


def _cut_everybody(hub: Hub) -> None:
    """Cut whoever is connected: one of them may have been revoked in entries that are missing."""
    for name, link in hub.status().items():
        if link.is_connected:
            hub.disconnect(name, f"the hub admits nobody at present: {BEHIND}", for_good=False)


def _recorded(note: Callable[..., None], *event: str, **fields: str) -> None:
    """Write it down; a peer is not admitted unrecorded, and learns no path of this machine."""
    try:
        note(*event, **fields)
    except StorageError as error:
        _LOG.error("nobody can be admitted: %s", error)
        raise RunError("the hub can't record who comes at present; try again later") from error


def _renewed(federation: FederationDirectory, hub: Hub, shown: Identity) -> Identity:
    """Have the hub show its newer certificate, if one is needed; returns the one it shows now.

    Showing another certificate cuts every link for a moment. A certificate that is due is replaced.
    One that seems not yet valid, because the clock jumped back, was accepted by all connected
    parties: it is replaced only when none is connected.
    """
    newer = federation.hub_identity()
    if newer == shown:
        return shown
    is_due = is_renewal_due(shown.certificate, federation.now())
    if not is_due and any(link.is_connected for link in hub.status().values()):
        return shown
    hub.renew(newer)
    _LOG.info("the hub shows a new certificate")
    return newer
