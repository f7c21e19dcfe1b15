"""The dispatch of a client whose rate is limited (KIP-219), by `max.connection.bytes.per.second`."""

from __future__ import annotations

from collections.abc import Coroutine
from math import ceil
from typing import Any, Final

from ...token_bucket import TokenBucket
from ..delayed_reply import DelayedReply, Reply
from ..request import ConnectionContext, Dispatch

LONGEST_WAIT_S: Final = 60.0
"""A connection that is not read does not notice its client's end."""


class Metered:
    """Charges the bytes of each request to `bucket`, then dispatches it. A client above its rate is answered at once
    with the time to wait (`throttle_ms`), and nothing more is read from it for that time, so that ignoring it gains
    nothing. This is a dispatch of its own, so that connections without a limit test nothing."""

    def __init__(self, served: Dispatch, bucket: TokenBucket) -> None:
        self._served = served
        self._bucket = bucket

    def __call__(
        self, connection: ConnectionContext, frame: bytearray
    ) -> Reply | DelayedReply | Coroutine[Any, Any, Reply]:
        self._bucket.spend(len(frame))
        wait_s = min(self._bucket.wait_s(), LONGEST_WAIT_S)
        connection.throttle_ms = ceil(wait_s * 1000)
        if wait_s and connection.throttle is not None:
            connection.throttle(wait_s)
        return self._served(connection, frame)


def metered(served: Dispatch, bytes_per_s: float) -> Dispatch:
    """Returns a dispatch that meters each connection on its own, from its first request on."""

    def first(connection: ConnectionContext, frame: bytearray) -> Reply | DelayedReply | Coroutine[Any, Any, Reply]:
        connection.dispatch = Metered(served, TokenBucket(bytes_per_s))
        return connection.dispatch(connection, frame)

    return first
