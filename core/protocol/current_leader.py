"""The present leader of a partition: tagged fields of Produce (v10 up) and Fetch (v16 up) responses (KIP-951)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from .primitives import INT32, array, string, tagged

PRODUCE_FROM: Final = 10
FETCH_FROM: Final = 16
_LEADER = struct.Struct(">iiB")
_NODE_ENDPOINTS: Final = 0


class CurrentLeader(NamedTuple):
    """Broker id and leader epoch."""

    leader_id: int
    leader_epoch: int

    def field(self, number: int) -> bytes:
        """Returns the tagged field; its number differs between the APIs."""
        return tagged(number, _LEADER.pack(*self, 0))


NodeEndpoint = tuple[int, str, int, str | None]
"""Id, host, port and rack of a broker, for the listener that the request came in on."""


def node_endpoints(nodes: Sequence[NodeEndpoint]) -> bytes:
    """Returns the tagged fields at the end of a response: the addresses of the leaders that it names."""
    if not nodes:
        return b"\0"
    items = [INT32.pack(node) + string(host, True) + INT32.pack(port) + string(rack, True) + b"\0"
             for node, host, port, rack in nodes]  # fmt: skip
    return b"\1" + tagged(_NODE_ENDPOINTS, array(len(nodes), True) + b"".join(items))
