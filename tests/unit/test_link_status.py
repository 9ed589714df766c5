"""The status of a party with two links: one for training, one for serving."""

from __future__ import annotations

from dataclasses import fields

from colonnade.fabrics.grpc.party_links import LinkStatus


def test_two_links_of_a_party_count_together() -> None:
    one = LinkStatus(is_connected=True, num_connects=1, num_restarts=2, num_refused=3)
    other = LinkStatus(num_connects=10, num_restarts=20, num_refused=30, wire_bytes_up=40)
    both = one.beside(other)
    assert both.is_connected
    counted = [getattr(both, item.name) for item in fields(both) if item.type == "int"]
    assert counted == [11, 22, 33, 40, 0]
    assert one.beside(LinkStatus(last_error="cut", release="9")).last_error == "cut"
