"""Settings of a link: sizes, keep-alive, patience with a peer, and how often to dial again."""

from __future__ import annotations

from dataclasses import dataclass

from colonnade.core.errors import ConfigError

__all__ = ["METHOD", "MOST_LANES", "SWEEP_SECONDS", "LinkSpec"]

# The one gRPC method of a link.
METHOD = "/colonnade.Link/Connect"
# How often acknowledgements, and calls that nothing else has sent along, are sent by themselves.
SWEEP_SECONDS = 0.02
# So many links may one party have to one hub.
MOST_LANES = 4

_MEGABYTE = 1024 * 1024
_TIMES = (
    *("keepalive", "keepalive_timeout", "ping_timeout"),
    *("hello_timeout", "call_timeout", "backoff", "backoff_most"),
)


@dataclass(frozen=True, kw_only=True)
class LinkSpec:
    """Sizes in bytes, times in seconds; each side has its own settings.

    Either side refuses a message larger than ``message_bytes``. While ``outbox_bytes`` are
    unacknowledged, a sender waits. A peer is pinged every ``keepalive``. It counts as gone if its
    machine confirms nothing for ``keepalive_timeout``, or if it does not answer within
    ``ping_timeout``. An answer comes after the messages on their way: on a slow link
    ``ping_timeout`` must be longer than the largest message takes, on both sides. After a cut a
    party dials again at once, then after ``backoff`` seconds, twice as long each time up to
    ``backoff_most``, each time shortened at random by up to half. A party ends a call that takes
    longer than ``call_timeout``, between two local steps.
    """

    message_bytes: int = 64 * _MEGABYTE
    outbox_bytes: int = 128 * _MEGABYTE
    keepalive: float = 10.0
    keepalive_timeout: float = 10.0
    ping_timeout: float = 30.0
    hello_timeout: float = 10.0
    call_timeout: float = 3600.0
    backoff: float = 0.1
    backoff_most: float = 10.0

    def __post_init__(self) -> None:
        for name in _TIMES:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}: must be above 0, got {getattr(self, name)}")
        if self.message_bytes < 4096:
            raise ConfigError(f"message_bytes: at least 4096, got {self.message_bytes}")
        if self.outbox_bytes < self.message_bytes:
            raise ConfigError(
                f"outbox_bytes: at least message_bytes ({self.message_bytes}), got "
                f"{self.outbox_bytes}"
            )

    def options(self) -> list[tuple[str, int]]:
        """The settings as gRPC's channel arguments."""
        return [
            ("grpc.max_send_message_length", self.message_bytes),
            ("grpc.max_receive_message_length", self.message_bytes),
            ("grpc.keepalive_time_ms", int(self.keepalive * 1000)),
            ("grpc.keepalive_timeout_ms", int(self.keepalive_timeout * 1000)),
            # The line above is for the kernel (TCP_USER_TIMEOUT), which tells slow from dead.
            ("grpc.http2.ping_timeout_ms", int(self.ping_timeout * 1000)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.max_ping_strikes", 0),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 100),
            # Large messages need large windows from the first byte on.
            ("grpc.http2.lookahead_bytes", 8 * _MEGABYTE),
            ("grpc.http2.max_frame_size", _MEGABYTE),
        ]
