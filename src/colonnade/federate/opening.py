"""A federation's hub, opened: links of members, renewals, enrolment, and the register minded."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from colonnade.core.errors import ColonnadeError
from colonnade.fabrics.grpc.hub import Hub
from colonnade.fabrics.grpc.identity import Identity
from colonnade.fabrics.grpc.settings import LinkSpec
from colonnade.federate.admission import Admission
from colonnade.federate.certificates import Now, now
from colonnade.federate.enrolment import EnrolmentService
from colonnade.federate.federation import Federation
from colonnade.federate.identities import is_renewal_due
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
    minding_seconds: float = 1.0,
    now: Now = now,
) -> Iterator[Hub]:
    """Open the hub of a federation's directory, at the addresses of its settings by default.

    Parties that are revoked, or that enrol again, are cut off within ``minding_seconds``; the
    hub's own certificate is replaced in time. ``enrols`` is False where ``colonnade federation
    enrol`` runs beside it.
    """
    federation, admission = Federation(directory, now=now), Admission(directory, now=now)
    own = federation.hub_identity()
    hub = Hub(
        identity=own,
        admit=admission,
        address=address or federation.settings.listen_address,
        links=links,
        handlers=(renewal_handler(directory, now=now),),
    )
    is_over = threading.Event()

    def mind() -> None:
        shown = own
        while not is_over.wait(minding_seconds):
            try:
                for name, message in admission.no_longer().items():
                    _LOG.warning("cut off", extra={"fields": {"party": name}})
                    hub.disconnect(name, message)
                shown = _renewed(federation, hub, shown)
            except ColonnadeError as error:
                _LOG.error("the register can't be minded: %s", error)

    minding = threading.Thread(target=mind, name="membership", daemon=True)
    try:
        enrolment = None
        if enrols:
            enrolment = EnrolmentService(directory, address=enrolment_address, now=now)
            enrolment.start()
        try:
            minding.start()
            yield hub
        finally:
            is_over.set()
            if minding.ident is not None:
                minding.join()
            if enrolment is not None:
                enrolment.stop()
    finally:
        hub.close()


def _renewed(federation: Federation, hub: Hub, shown: Identity) -> Identity:
    """Show the hub's newer certificate, if there is one and it is needed; the one it shows now.

    Showing another cuts every link for a moment. One that is due is replaced. One that is not yet
    valid by a clock that has jumped back was good for whoever is connected: it is replaced only
    when nobody is.
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
