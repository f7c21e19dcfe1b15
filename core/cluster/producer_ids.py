"""Producer ids in blocks (KIP-730's predecessor, `ZkProducerIdManager`): each id is given out once, ever.

A coordination that was restored from an older backup would give ids again that are in the logs already, and the logs
would take the new producers' batches for retries. So whoever takes a block says which id is the highest in use, and
the block begins above it. One that was restored together with the logs knows no better than they: so no block begins
below the clock's floor (`clock_floors`).
"""

from __future__ import annotations

import logging

from ..errors import CoordinationError
from ..interfaces.coordination import (
    BadVersionError,
    Coordination,
    CoordinationUnavailableError,
    NodeExistsError,
    NoNodeError,
)
from . import paths
from .nodes import ProducerIdBlockNode

BLOCK_SIZE = 1000
MAX_PRODUCER_ID = 2**63 - 1
SKIPPED = 1_000_000
"""Ids left out above the highest in use when the coordination is behind the logs: producers may hold ids that they have
not written with yet, and brokers that are not up yet may have higher ones in their logs."""
_ATTEMPTS = 100
_log = logging.getLogger(__name__)


def allocate_block(coordination: Coordination, broker_id: int, highest_used: int = -1, *, floor: int = 0) -> range:
    """The next `BLOCK_SIZE` ids, above `highest_used` and not below `floor`. A block whose claim had no answer is lost,
    not used again."""
    for _ in range(_ATTEMPTS):
        last, version = _last_given(coordination)
        start = max(_above(last, highest_used) + 1, floor)
        if _claim(coordination, broker_id, range(start, start + BLOCK_SIZE), version):
            return range(start, start + BLOCK_SIZE)
    raise _kept_changing()


def pass_over_used(coordination: Coordination, broker_id: int, highest_used: int) -> None:
    """Where the coordination would give ids up to `highest_used` again, has it go on above them. Nothing otherwise."""
    for _ in range(_ATTEMPTS):
        last, version = _last_given(coordination)
        if last >= highest_used:
            return
        if _claim(coordination, broker_id, range(last + 1, _above(last, highest_used) + 1), version):
            return
    raise _kept_changing()


def _last_given(coordination: Coordination) -> tuple[int, int | None]:
    """The last id that was given out (-1: none), and the version of the path (None: it is not there)."""
    try:
        data, stat = coordination.get(paths.PRODUCER_ID_BLOCK)
    except NoNodeError:
        return -1, None
    return ProducerIdBlockNode.decode(paths.PRODUCER_ID_BLOCK, data).block_end, stat.version


def _above(last: int, highest_used: int) -> int:
    """The id after which the next block begins."""
    if last >= highest_used:
        return last
    passed = highest_used + SKIPPED
    _log.warning(
        "%s: the last producer id given out is %d, but the log directory knows of %d: the coordination is older than "
        "the logs (restored from a backup?); ids go on at %d",
        paths.PRODUCER_ID_BLOCK, last, highest_used, passed + 1,
    )  # fmt: skip
    return passed


def _claim(coordination: Coordination, broker_id: int, block: range, version: int | None) -> bool:
    """Whether the block is this broker's now; False when another broker was quicker."""
    if block.stop > MAX_PRODUCER_ID:
        raise CoordinationError(f"{paths.PRODUCER_ID_BLOCK}: all producer ids are used up")
    node = ProducerIdBlockNode(broker=broker_id, block_start=block.start, block_end=block.stop - 1)
    try:
        if version is None:
            coordination.create(paths.PRODUCER_ID_BLOCK, node.encode(), make_parents=True)
        else:
            coordination.set(paths.PRODUCER_ID_BLOCK, node.encode(), version)
    except (BadVersionError, NodeExistsError):
        return False
    return True


def _kept_changing() -> CoordinationUnavailableError:
    return CoordinationUnavailableError(f"{paths.PRODUCER_ID_BLOCK} kept changing for {_ATTEMPTS} attempts")
