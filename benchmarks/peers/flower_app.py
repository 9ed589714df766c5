"""SplitNN as Flower messages: one message per party and step, arrays as records.

A ClientApp may answer each message in another process, so a party's weights are where Flower
keeps a node's state between messages, in ``context.state``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib.metadata import version

import torch
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from halves import Array, PartyHalf, party_names, take_orders

__all__ = ["holder_app", "party_app"]

party_app = ClientApp()
holder_app = ServerApp()
# A process that answers again need not read the features again.
_halves: dict[str, PartyHalf] = {}
_PATIENCE = 120.0


@party_app.train()
def step(message: Message, context: Context) -> Message:
    """Take the step of the batch before and give the embedding of this one."""
    name = party_names()[int(context.node_config["partition-id"])]
    if name not in _halves:
        _halves[name] = PartyHalf(name)
    party = _halves[name]
    kept = context.state.get("weights")
    if kept is not None:
        party.load([torch.from_numpy(array.numpy()) for array in kept.values()])
        party.forget()
    number = int(message.content["order"]["number"])
    gradient = message.content["gradient"]["it"].numpy() if "gradient" in message.content else None
    embedding = party.answer(number, gradient)
    weights = [parameter.detach().numpy() for parameter in party.network.parameters()]
    context.state["weights"] = ArrayRecord(
        {f"{at:02d}": FlowerArray(value) for at, value in enumerate(weights)}
    )
    content = RecordDict(
        {
            "embedding": ArrayRecord({"it": FlowerArray(embedding)}),
            "who": ConfigRecord({"name": name}),
        }
    )
    return Message(content=content, reply_to=message)


@holder_app.main()
def drive(grid: Grid, context: Context) -> None:
    """The label holder: steps as ordered from outside."""
    num_parties = len(party_names())
    nodes = _nodes(grid, num_parties)
    names: dict[int, str] = {}

    def ask(number: int, gradients: Mapping[str, Array]) -> dict[str, Array]:
        messages = []
        for node in nodes:
            content = RecordDict({"order": ConfigRecord({"number": number})})
            if gradients:
                gradient = FlowerArray(gradients[names[node]])
                content["gradient"] = ArrayRecord({"it": gradient})
            messages.append(Message(content=content, message_type="train", dst_node_id=node))
        found = {}
        for reply in grid.send_and_receive(messages, timeout=_PATIENCE):
            if reply.has_error():
                raise RuntimeError(f"step {number}: {reply.error}")
            name = str(reply.content["who"]["name"])
            names[reply.metadata.src_node_id] = name
            found[name] = reply.content["embedding"]["it"].numpy()
        return found

    take_orders(ask, {"flwr": version("flwr")})


def _nodes(grid: Grid, count: int) -> list[int]:
    """Everybody, once everybody is there."""
    until = time.monotonic() + _PATIENCE
    while len(nodes := sorted(grid.get_node_ids())) < count:
        if time.monotonic() > until:
            raise RuntimeError(f"{len(nodes)} of {count} parties came within {_PATIENCE:.0f} s")
        time.sleep(0.1)
    return nodes
