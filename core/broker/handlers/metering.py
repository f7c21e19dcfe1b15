"""The dispatch of a client whose rate is limited (KIP-219)."""

from __future__ import annotations

from collections.abc import Coroutine
from math import ceil
from typing import Any

from ...token_bucket import TokenBucket
from ..delayed_reply import DelayedReply, Reply
from ..request import ConnectionContext, Dispatch


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
        wait_s = self._bucket.wait_s()
        connection.throttle_ms = ceil(wait_s * 1000)
        if wait_s and connection.throttle is not None:
            connection.throttle(wait_s)
        return self._served(connection, frame)
