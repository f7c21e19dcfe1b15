"""The identity of a log directory's data, by which a broker's records are judged after a restart
(docs/replication.md, "The data id").

An id covers everything that was ever written under it. A start draws a new id, and keeps the old one as an ancestor,
when acknowledged records may be missing: the kernel has restarted without a clean mark, a flush has failed, recovery
has cut more than one unfinished write, a log ends before its checkpoints, or the directory is a copy, perhaps an
older one. `kill -9` on a running kernel keeps the id: the page cache survived.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from .log_directory import META
from .segment.file_operations import read_file, storage, write_atomically
from .state.checksummed import VERSION, seal, versioned_lines

DATA_ID: Final = "data-id"
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_log = logging.getLogger(__name__)

LATEST_DATA_IDS: Final = 8
"""The number of ids that are stored: the newest and its ancestors. Of older ones only those that a partition's state
names are stored, too."""


@dataclass(frozen=True, slots=True)
class DataIdentity:
    """The content of the log directory's sealed file. `data_ids`: newest first."""

    data_ids: tuple[str, ...]
    boot_id: str
    clean: bool = False
    """True if the broker that wrote the file had flushed and closed every log."""
    flush_failed: bool = False
    place: str = ""
    """The result of `place_of` for the directory when the file was written."""
    strange_ids: tuple[str, ...] = ()
    """The ids by which partition states knew this broker when the directory began without an identity, as an empty disk
    does. They name another disk's records, and never become ancestors."""


def place_of(directory: Path) -> str:
    """Returns the file numbers (inodes) of the directory and its `meta.properties`, which a copy does not have. Raises
    `StorageError`."""
    with storage(f"cannot read {directory}"):
        return f"{directory.stat().st_ino}:{(directory / META).stat().st_ino}"


def identity_at_start(
    found: DataIdentity | None,
    boot_id: str,
    new_id: Callable[[], str],
    *,
    recovery_cut: bool,
    place: str = "",
    named: Collection[str] = (),
) -> DataIdentity:
    """Returns the identity under which a starting broker registers; it must be on disk before the registration.

    `found` is None for a directory without one. `recovery_cut`: recovery has cut more than one unfinished last
    write. `place`: the present result of `place_of`. `named`: the data ids by which partition states know this broker's
    replicas. These ancestors are kept, however old they are: a partition may have had no election since.
    """
    if found is None:
        return DataIdentity((new_id(),), boot_id, place=place, strange_ids=tuple(named))
    now = DataIdentity(found.data_ids, boot_id, place=place, strange_ids=found.strange_ids)
    unflushed_lost = (found.boot_id != boot_id or not boot_id) and not found.clean
    if unflushed_lost or found.flush_failed or recovery_cut or is_copy(found, place):
        ids = (new_id(), *found.data_ids)
        older = tuple(data_id for data_id in ids[LATEST_DATA_IDS:] if data_id in named)
        return replace(now, data_ids=ids[:LATEST_DATA_IDS] + older)
    return now


def is_copy(found: DataIdentity, place: str) -> bool:
    """Returns True if the directory is a copy, which may be older than the records that the broker has acknowledged."""
    return found.place != place


def kernel_boot_id() -> str:
    """Returns the id of the running kernel; "" if the system has none: each start then counts as one after a power
    loss, unless the last stop was clean."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def read_identity(directory: Path, *, clean: bool) -> DataIdentity | None:
    """Returns the identity in the directory; None if there is none. `clean`: the directory has the marker of a clean
    stop. A damaged file counts as missing, which is safe: the broker's data is then that of a new replica. Raises
    `StorageError` if the file cannot be read."""
    path = directory / DATA_ID
    if (raw := read_file(path)) is None:
        return None
    try:
        (line,) = versioned_lines(raw)
        found = json.loads(line)
        identity = DataIdentity(
            tuple(str(data_id) for data_id in found["data_ids"]),
            str(found["boot_id"]),
            clean=clean,
            flush_failed=bool(found["flush_failed"]),
            place=str(found["place"]),
            strange_ids=tuple(str(data_id) for data_id in found["strange_ids"]),
        )
        if not identity.data_ids:
            raise ValueError("no id")
    except (ValueError, KeyError, TypeError) as error:
        _log.error("%s is damaged (%s): this broker's replicas count as new, and copy their logs again", path, error)
        return None
    return identity


def write_identity(directory: Path, identity: DataIdentity) -> None:
    """Stores the identity durably; raises `StorageError`."""
    row = {
        "data_ids": identity.data_ids, "boot_id": identity.boot_id, "flush_failed": identity.flush_failed,
        "place": identity.place, "strange_ids": identity.strange_ids,
    }  # fmt: skip
    write_atomically(directory / DATA_ID, seal(f"{VERSION}\n{json.dumps(row)}\n"))
