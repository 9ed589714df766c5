"""The links of a session, on which batches of a part go by the names of a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from colonnade.core.messages import Batch, Call
from colonnade.core.party import Part
from colonnade.fabrics.grpc.network_fabric import GrpcFabric, Session

__all__ = ["AddressedFabric", "renamed"]


def renamed(call: Call, names: Mapping[str, str]) -> Call:
    """The same call about batches by other names; those without another stay."""
    arguments = tuple(
        Batch(names.get(item.part, item.part), item.number) if type(item) is Batch else item
        for item in call.arguments
    )
    return replace(call, arguments=arguments)


class AddressedFabric(GrpcFabric):
    """A fabric for one request.

    Args:
        session: The links.
        part: What the method calls the samples of the request.
        names: By party, what the party calls them.
        gathers: Whether replies are taken up together: for a request of one batch.
    """

    def __init__(
        self, session: Session, part: str, names: Mapping[str, str], *, gathers: bool = False
    ) -> None:
        super().__init__(session)
        self._links, self._part, self._names = session, part, names
        self.gathers = gathers

    def send(self, call: Call) -> None:
        """Send a call with its batches renamed."""
        super().send(renamed(call, {self._part: self._names[call.party]}))

    def aside(self, parts: Mapping[str, Mapping[str, Part]] | None = None) -> GrpcFabric:
        """The same links, with a meter of its own."""
        if parts is not None:
            return super().aside(parts)
        return AddressedFabric(self._links, self._part, self._names, gathers=self.gathers)
