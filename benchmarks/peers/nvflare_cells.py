"""SplitNN over NVFlare's cells: one request per party and step, raw bytes, loopback.

Called as ``nvflare_cells.py URL [PARTY]``; without a party it is the label holder's cell. Over
mutual TLS if there are certificates beside the files of the case.
"""

from __future__ import annotations

import struct
import sys
import threading
from collections.abc import Mapping
from importlib.metadata import version

import numpy as np
from nvflare.fuel.f3.cellnet.core_cell import CoreCell, TargetMessage
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.message import Message

from halves import Array, PartyHalf, case_directory, party_names, take_orders

_CHANNEL, _TOPIC = "splitnn", "step"
_NUMBER = struct.Struct("<q")
_TIMEOUT = 60.0
_EMBEDDING = 64


def _cell(name: str, url: str) -> CoreCell:
    certificates = case_directory() / "tls"
    if not certificates.exists():
        return CoreCell(fqcn=name, root_url=url, secure=False, credentials={})
    side, file = ("server", "hub") if name == FQCN.ROOT_SERVER else ("client", name)
    credentials = {
        "ca_cert": str(certificates / "authority.pem"),
        f"{side}_cert": str(certificates / f"{file}.pem"),
        f"{side}_key": str(certificates / f"{file}.key"),
        "connection_security": "mtls",
    }
    return CoreCell(
        fqcn=name,
        root_url=url,
        secure=True,
        credentials=credentials,
        # The label holder's certificate names it as Colonnade does.
        auth_identity_map={FQCN.ROOT_SERVER: "hub"},
    )


def _serve(name: str, url: str) -> None:
    party = PartyHalf(name)

    def answer(request: Message) -> Message:
        content = bytes(request.payload)
        (number,) = _NUMBER.unpack_from(content)
        gradient = None
        if len(content) > _NUMBER.size:
            values = np.frombuffer(content, np.float32, offset=_NUMBER.size).copy()
            gradient = values.reshape(len(party.positions(number)), -1)
        return Message(
            {MessageHeaderKey.RETURN_CODE: ReturnCode.OK},
            party.answer(number, gradient).tobytes(),
        )

    cell = _cell(name, url)
    cell.register_request_cb(channel=_CHANNEL, topic=_TOPIC, cb=answer)
    cell.start()
    threading.Event().wait()  # until it is stopped from outside


def _drive(url: str) -> None:
    names = party_names()
    present = threading.Semaphore(0)
    cell = _cell(FQCN.ROOT_SERVER, url)
    cell.set_cell_connected_cb(lambda endpoint: present.release())
    cell.start()
    for _ in names:
        if not present.acquire(timeout=_TIMEOUT):
            raise RuntimeError("a party's cell did not connect")

    def ask(number: int, gradients: Mapping[str, Array]) -> dict[str, Array]:
        head = _NUMBER.pack(number)
        requests = {}
        for name in names:
            body = gradients[name].tobytes() if gradients else b""
            requests[name] = TargetMessage(name, _CHANNEL, _TOPIC, Message(None, head + body))
        replies = cell.broadcast_multi_requests(requests, timeout=_TIMEOUT)
        found = {}
        for name, reply in replies.items():
            code = reply.get_header(MessageHeaderKey.RETURN_CODE)
            if code != ReturnCode.OK:
                raise RuntimeError(f"step {number}: {name} answered {code}")
            values = np.frombuffer(bytes(reply.payload), np.float32).copy()
            found[name] = values.reshape(-1, _EMBEDDING)
        return found

    take_orders(ask, {"nvflare": version("nvflare")})
    cell.stop()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        _serve(sys.argv[2], sys.argv[1])
    else:
        _drive(sys.argv[1])
