"""The links of a session, on which batches of a part go by the name of a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from colonnade.core.messages import Batch, Call
from colonnade.core.party import Part
from colonnade.fabrics.grpc.network_fabric import GrpcFabric, Session

__all__ = ["AddressedFabric"]


class AddressedFabric(GrpcFabric):
    """A fabric for one request.

    Args:
        session: The links.
        names: By part, what the parties call it.
    """

    def __init__(self, session: Session, names: Mapping[str, str]) -> None:
        super().__init__(session)
        self._links, self._names = session, names

    def send(self, call: Call) -> None:
        """Send a call with its batches renamed."""
        arguments = tuple(
            Batch(self._names.get(item.part, item.part), item.number)
            if type(item) is Batch
            else item
            for item in call.arguments
        )
        super().send(replace(call, arguments=arguments))

    def aside(self, parts: Mapping[str, Mapping[str, Part]] | None = None) -> GrpcFabric:
        """The same links, with a meter of its own."""
        if parts is not None:
            return super().aside(parts)
        return AddressedFabric(self._links, self._names)
