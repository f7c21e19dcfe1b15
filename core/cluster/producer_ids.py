"""Allocates producer ids in blocks (KIP-730's predecessor, `ZkProducerIdManager`); no id is ever allocated twice.

A coordination that was restored from an older backup would allocate ids that are in the logs already, and the logs
would take the new producers' batches for retries. So a broker that allocates a block passes the highest id that it
knows to be in use, and the block starts above it. If logs and coordination were restored together, both lack the later
ids: so no block starts below the clock's floor (`clock_floors`).

Logs that were mirrored have ids that another cluster has allocated. Clients write such a log only after the next block
starts above them (`skip_used`).
"""

from __future__ import annotations

import logging

from ..errors import CoordinationError
from ..interfaces.coordination import BadVersionError, CoordinationUnavailableError, NodeExistsError, Set
from .tree import paths
from .tree.nodes import ProducerIdBlockNode
from .tree.steps import Steps, create_below, find, transact

BLOCK_SIZE = 1000
MAX_PRODUCER_ID = 2**63 - 1
SKIPPED = 1_000_000
"""The number of ids skipped above the highest in use if the coordination is behind the logs: producers may have ids
that they have not used for writing yet, and brokers that have not started yet may have higher ids in their logs."""
_ATTEMPTS = 100
_log = logging.getLogger(__name__)


def allocate_block(broker_id: int, highest_used: int = -1, *, floor: int = 0) -> Steps[range]:
    """Returns the next `BLOCK_SIZE` ids, above `highest_used` and not below `floor`. A block whose claim got no
    response is never used."""
    for _ in range(_ATTEMPTS):
        last, version = yield from _last_allocated()
        start = max(_above(last, highest_used) + 1, floor)
        if (yield from _claim(broker_id, range(start, start + BLOCK_SIZE), version)):
            return range(start, start + BLOCK_SIZE)
    raise _kept_changing()


def skip_used(broker_id: int, highest_used: int) -> Steps[None]:
    """Makes the next block start above `highest_used`, if it would not otherwise."""
    for _ in range(_ATTEMPTS):
        last, version = yield from _last_allocated()
        if last >= highest_used:
            return
        if (yield from _claim(broker_id, range(last + 1, _above(last, highest_used) + 1), version)):
            return
    raise _kept_changing()


def _last_allocated() -> Steps[tuple[int, int | None]]:
    """Returns the last allocated id (-1: none) and the version of the path (None: it does not exist)."""
    found = yield from find(paths.PRODUCER_ID_BLOCK)
    if found is None:
        return -1, None
    return ProducerIdBlockNode.decode(paths.PRODUCER_ID_BLOCK, found[0]).block_end, found[1].version


def _above(last: int, highest_used: int) -> int:
    """Returns the id after which the next block begins."""
    if last >= highest_used:
        return last
    skipped_to = highest_used + SKIPPED
    _log.warning(
        "%s: the last allocated producer id is %d, but the log directory has %d: a topic was mirrored from another "
        "cluster, or the coordination is older than the logs (restored from a backup?); the next id is %d",
        paths.PRODUCER_ID_BLOCK, last, highest_used, skipped_to + 1,
    )  # fmt: skip
    return skipped_to


def _claim(broker_id: int, block: range, version: int | None) -> Steps[bool]:
    """Returns whether this broker got the block; False if another broker changed the path first."""
    if block.stop > MAX_PRODUCER_ID:
        raise CoordinationError(f"{paths.PRODUCER_ID_BLOCK}: all producer ids are used up")
    node = ProducerIdBlockNode(broker=broker_id, block_start=block.start, block_end=block.stop - 1)
    try:
        if version is None:
            yield from create_below(paths.PRODUCER_ID_BLOCK, node.encode())
        else:
            yield from transact(Set(paths.PRODUCER_ID_BLOCK, node.encode(), version))
    except (BadVersionError, NodeExistsError):
        return False
    return True


def _kept_changing() -> CoordinationUnavailableError:
    return CoordinationUnavailableError(f"{paths.PRODUCER_ID_BLOCK} kept changing for {_ATTEMPTS} attempts")
