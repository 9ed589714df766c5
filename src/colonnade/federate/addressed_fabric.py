"""The links of a session, on which batches of a part go by the names of a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from colonnade.core.messages import Batch, Call
from colonnade.core.party import Part
from colonnade.fabrics.grpc.link_session import Session
from colonnade.fabrics.grpc.network_fabric import GrpcFabric

__all__ = ["AddressedFabric", "HeldCalls", "renamed"]


def renamed(call: Call, names: Mapping[str, str]) -> Call:
    """The same call about batches by other names; those without another stay."""
    if not any(type(item) is Batch for item in call.arguments):
        return call
    arguments = tuple(
        Batch(names.get(item.part, item.part), item.number) if type(item) is Batch else item
        for item in call.arguments
    )
    return replace(call, arguments=arguments)


class HeldCalls(GrpcFabric):
    """Calls that tell parties the samples of a request, held back until each is asked of them.

    Args:
        session: The links.
        beside: The fabric that all others of the session are beside.
    """

    def __init__(self, session: Session, beside: GrpcFabric) -> None:
        super().__init__(session, beside)
        self._held: dict[str, Call] = {}
        # The parties that were told apart from the question, and keep the samples until they are
        # told to forget them.
        self.told: set[str] = set()

    def send(self, call: Call) -> None:
        """Hold a call back."""
        self._held[call.party] = call

    def take_out(self, party: str) -> Call | None:
        """The call to a party, which travels with another one."""
        return self._held.pop(party, None)

    def let_go(self, party: str) -> None:
        """Send a party its call, if it is here still."""
        call = self._held.pop(party, None)
        if call is not None:
            self.told.add(party)
            super().send(call)


class AddressedFabric(GrpcFabric):
    """A fabric for one request.

    Args:
        session: The links.
        part: What the method calls the samples of the request.
        names: By party, what the party calls them.
        held: For a request of one batch, the calls that tell parties the samples: they travel with
            the question, and replies are taken up together.
    """

    # A request has no summary, and no line of its own in any picture.
    is_measured = False

    def __init__(
        self,
        session: Session,
        part: str,
        names: Mapping[str, str],
        held: HeldCalls | None = None,
    ) -> None:
        super().__init__(session)
        self._links, self._part, self._names, self._samples = session, part, names, held
        self.gathers = held is not None

    def send(self, call: Call) -> None:
        """Send a call with its batches renamed."""
        if self._samples is not None:
            if call.verb == "infer" and call.summand is None:
                telling = self._samples.take_out(call.party)
                if telling is not None:
                    batch = call.arguments[0]
                    assert isinstance(batch, Batch)
                    arguments = (*telling.arguments, batch.number)
                    super().send(
                        Call(call.id, call.party, "infer_about", arguments, call.exchange, True)
                    )
                    return
            self._samples.let_go(call.party)
        super().send(renamed(call, {self._part: self._names[call.party]}))

    def aside(self, parts: Mapping[str, Mapping[str, Part]] | None = None) -> GrpcFabric:
        """The same links, with a meter of its own."""
        if parts is not None:
            return super().aside(parts)
        return AddressedFabric(self._links, self._part, self._names, self._samples)
