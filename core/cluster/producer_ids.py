"""Producer ids in blocks (KIP-730's predecessor, `ZkProducerIdManager`): each id is given out once, ever."""

from __future__ import annotations

from klamm.core.cluster import paths
from klamm.core.cluster.nodes import ProducerIdBlockNode
from klamm.core.errors import CoordinationError
from klamm.core.seams.coordination import (
    BadVersionError,
    Coordination,
    CoordinationUnavailableError,
    NodeExistsError,
    NoNodeError,
)

BLOCK_SIZE = 1000
MAX_PRODUCER_ID = 2**63 - 1
_ATTEMPTS = 100


def allocate_block(coordination: Coordination, broker_id: int) -> range:
    """The next `BLOCK_SIZE` ids. A block whose claim had no answer is lost, not used again: a reused id would drop new
    records as duplicates."""
    for _ in range(_ATTEMPTS):
        try:
            data, stat = coordination.get(paths.PRODUCER_ID_BLOCK)
            start = ProducerIdBlockNode.decode(paths.PRODUCER_ID_BLOCK, data).block_end + 1
            version = stat.version
        except NoNodeError:
            start, version = 0, None
        if start > MAX_PRODUCER_ID - BLOCK_SIZE:
            raise CoordinationError(f"{paths.PRODUCER_ID_BLOCK}: all producer ids are used up")
        node = ProducerIdBlockNode(broker=broker_id, block_start=start, block_end=start + BLOCK_SIZE - 1)
        try:
            if version is None:
                coordination.create(paths.PRODUCER_ID_BLOCK, node.encode(), make_parents=True)
            else:
                coordination.set(paths.PRODUCER_ID_BLOCK, node.encode(), version)
        except (BadVersionError, NodeExistsError):
            continue  # another broker was quicker
        return range(start, start + BLOCK_SIZE)
    raise CoordinationUnavailableError(f"{paths.PRODUCER_ID_BLOCK} kept changing for {_ATTEMPTS} attempts")
