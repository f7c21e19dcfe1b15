"""What the broker knows about one API."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...protocol.apis import ApiKey
from ..delayed_reply import DelayedReply, Outcome
from ..request import Request
from ..services import Services

Handler: TypeAlias = Callable[[Services, Request], Outcome | DelayedReply | Coroutine[Any, Any, Outcome]]
"""Takes a decoded request; returns its outcome, a coroutine of it if it has to wait, or a delayed reply if it has to
wait only for other brokers. Errors of the protocol go into the response; a `ProtocolError` closes the connection. A
handler that returns pieces counts the errors in them itself.
"""


@dataclass(frozen=True, slots=True)
class Api:
    """One API: its key, the lowest and the highest version served, and its handler.

    `leased`: it concerns this broker's partitions or groups, and is not handled while it is unknown whether this
    broker still has them (`lease`). All others either change the coordination, which refuses an expired session, or
    only read. `before_authentication`: it is served before the connection's client is known. `advertised_from`: the
    lowest version that ApiVersions answers, if it is not the lowest served.
    """

    key: ApiKey
    versions: tuple[int, int]
    handler: Handler
    leased: bool = False
    before_authentication: bool = False
    advertised_from: int | None = None

    @property
    def advertised(self) -> tuple[int, int]:
        low, high = self.versions
        return (low if self.advertised_from is None else self.advertised_from), high
