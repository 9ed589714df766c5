"""An alignment between parties behind real sockets with mutual TLS."""

from __future__ import annotations

import pytest

from alignments import MODES, Federation, assert_equals_plain_join, make_chunks_small
from colonnade.core.errors import PartyFailed
from messages import says
from networks import LoopbackFabric

IDS = {
    "bank": [f"{item}" for item in range(0, 50)],
    "shop": [f"{item}" for item in range(20, 60)],
    "été": [f"{item}" for item in range(30, 75)],
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("own", [True, False])
def test_equals_a_plain_outer_join(mode, own, monkeypatch):
    make_chunks_small(monkeypatch)
    federation = Federation(IDS, fabric=LoopbackFabric, mode=mode, own=own)
    try:
        assert_equals_plain_join(federation, federation.match())
    finally:
        federation.fabric.close()


def test_goes_on_after_links_were_cut(monkeypatch):
    make_chunks_small(monkeypatch)
    federation = Federation(IDS, fabric=LoopbackFabric, mode="intersection")
    agents = federation.fabric.agents
    num_cuts = 0

    def cut(done: int, total: int) -> None:
        nonlocal num_cuts
        if done < total:
            list(agents.values())[num_cuts % len(agents)].agent.reconnect()
            num_cuts += 1

    try:
        overlap = federation.match(progress=cut)
        assert_equals_plain_join(federation, overlap)
        assert num_cuts > 5
        assert all(item.agent.status.num_cuts for item in agents.values())
    finally:
        federation.fabric.close()


def test_a_party_with_other_terms_refuses_from_afar():
    salts = {"shop": "the salt of another federation"}
    federation = Federation(IDS, fabric=LoopbackFabric, salts=salts)
    try:
        with pytest.raises(
            PartyFailed, match=says("'shop'", "align", "salt", "mode", "labelled_only", "key")
        ):
            federation.match()
    finally:
        federation.fabric.close()
