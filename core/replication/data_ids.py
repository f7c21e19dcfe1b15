"""The identity of a log directory's data: it tells which records a broker can be presumed to have after a restart.

An id covers everything that was ever written under it. A start draws a new id, and keeps the old one as an ancestor,
when acknowledged records may be missing: the kernel has restarted without a clean mark, a flush has failed, or recovery
has cut more than one unfinished write. `kill -9` on a running kernel keeps the id: the page cache survived.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

MOST_DATA_IDS: Final = 8
"""The number of ids that are kept: the newest and its ancestors. A member of an ISR whose id is older counts as new."""


@dataclass(frozen=True, slots=True)
class DataIdentity:
    """The content of the log directory's sealed file. `data_ids`: newest first."""

    data_ids: tuple[str, ...]
    boot_id: str
    clean: bool = False
    """True if the broker that wrote the file had flushed and closed every log."""
    flush_failed: bool = False


def identity_at_start(
    found: DataIdentity | None, boot_id: str, new_id: Callable[[], str], *, recovery_cut: bool
) -> DataIdentity:
    """Returns the identity under which a starting broker registers; it must be on disk before the registration.

    `found` is None for a directory without one. `recovery_cut`: recovery has cut more than one unfinished last write.
    """
    if found is None:
        return DataIdentity((new_id(),), boot_id)
    unflushed_lost = found.boot_id != boot_id and not found.clean
    if unflushed_lost or found.flush_failed or recovery_cut:
        return DataIdentity((new_id(), *found.data_ids)[:MOST_DATA_IDS], boot_id)
    return DataIdentity(found.data_ids, boot_id)
