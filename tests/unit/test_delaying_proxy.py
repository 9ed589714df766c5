"""The proxy that holds bytes back in a measurement."""

from __future__ import annotations

from colonnade.bench.delaying_proxy import DelayingProxy


def test_it_ends_with_its_parent() -> None:
    """Otherwise it looks at a closed pipe for ever, and takes a core from what is measured next."""
    proxy = DelayingProxy(1)
    # As the system does it where the parent is killed.
    proxy._control.close()
    proxy._process.join(30)
    assert proxy._process.exitcode == 0
