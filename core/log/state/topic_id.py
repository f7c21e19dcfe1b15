"""The topic id of a partition directory, in the file `partition.metadata` (KIP-516).

It prevents a new topic from showing the records of a deleted topic of the same name.

The file has Kafka's two lines, `version: 0` and `topic_id: ` with the UUID in URL-safe base64 without padding, and a
checksum.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path
from uuid import UUID

from ...errors import StorageError
from ...records.partition import TopicPartition
from ..segment.file_operations import read_file, storage, sync_directory, write_atomically
from ..segment.naming import PARTITION_METADATA
from .checksummed import properties, seal, unseal


def uuid_text(value: UUID) -> str:
    """Returns the id in Kafka's text form, 22 characters."""
    return urlsafe_b64encode(value.bytes).decode().rstrip("=")


def parse_uuid(text: str) -> UUID:
    """Returns the id from the result of `uuid_text`; `ValueError` for any other text."""
    return UUID(bytes=urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def read_topic_id(directory: Path) -> UUID | None:
    """Returns the topic id of the directory; None if it has none. Raises `StorageError` if the file is damaged."""
    path = directory / PARTITION_METADATA
    if (raw := read_file(path)) is None:
        return None
    try:
        fields = properties(unseal(raw), ": ")
        if fields["version"] != "0":
            raise ValueError(f"version {fields['version']!r}, not 0")
        return parse_uuid(fields["topic_id"])
    except (ValueError, KeyError) as error:
        raise StorageError(f"{path} is damaged: {error}") from error


def claim_directory(directory: Path, tp: TopicPartition, topic_id: UUID, *, durable: bool = True) -> bool:
    """Creates the directory and its topic id if they do not exist; `StorageError` if it has the id of another topic
    of the same name. Returns True if the id is durable. Without `durable` the caller makes a new id (`sync_claim`),
    and the directory's name in its parent, durable before the log is used."""
    with storage(f"cannot create {directory}"):
        if not directory.is_dir():
            directory.mkdir(parents=True)
            if durable:
                sync_directory(directory.parent)
    found = read_topic_id(directory)
    if found is None:
        content = f"version: 0\ntopic_id: {uuid_text(topic_id)}\n"
        write_atomically(directory / PARTITION_METADATA, seal(content), named=durable)
        return durable
    if found != topic_id:
        raise StorageError(
            f"{directory} contains {tp} of the topic id {uuid_text(found)}, not {uuid_text(topic_id)}: set it aside"
        )
    return True


def change_topic_id(directory: Path, topic_id: UUID) -> None:
    """Makes the directory that of another topic, durably. Raises `StorageError`."""
    with storage(f"cannot write {directory}"):
        write_atomically(directory / PARTITION_METADATA, seal(f"version: 0\ntopic_id: {uuid_text(topic_id)}\n"))


def sync_claim(directory: Path) -> None:
    """Makes the topic id that `claim_directory` has written durable. Raises `StorageError`."""
    with storage(f"cannot write {directory}"):
        sync_directory(directory)
