"""The manifest of a load: `_offsets.json`, which becomes visible in the same rename as the data.

It names every partition of the topic, those without new records too (`from` = `to`), so that the last manifest alone
determines where the next load begins. With the offsets it records the log that they belong to: the topic's id, and of
each partition the batch that holds the last loaded offset (`klamm.hadoop.load.planning.history`). It identifies the
directory (`LakeOrigin`): the audit counts each by itself.
"""

from __future__ import annotations

from typing import Final, TypeVar
from uuid import UUID

from pydantic import BaseModel, Field, ValidationError

from klamm.core.config.section import TimeZone
from klamm.core.errors import KlammError

from ..publishing.interface import LakeError, LakeReader
from .layout import OFFSETS, TopicLayout, load_number

VERSION: Final = 2
_Model = TypeVar("_Model", bound=BaseModel)


class BatchMark(BaseModel, frozen=True):
    """Identifies a batch: the leader epoch it was written under, its base offset and its CRC. Without the last two, the
    requested offset is in a gap between batches, and the epoch is that of the next batch.
    """

    leader_epoch: int
    base_offset: int | None = None
    crc: int | None = None

    @property
    def holds(self) -> bool:
        """True if the batch contains the requested offset."""
        return self.base_offset is not None


class PartitionRange(BaseModel, frozen=True, validate_by_name=True):
    """Offsets [from, to) of one partition. `lost_to`: the load does not contain [from, lost_to): records there were
    deleted before the load, or the first load skipped them; `reset` is the `auto.offset.reset` that applied. `batch`
    contains the last offset below `to`; None if that was deleted, or nothing was loaded yet."""

    start: int = Field(validation_alias="from", serialization_alias="from", ge=0)
    end: int = Field(validation_alias="to", serialization_alias="to", ge=0)
    lost_to: int | None = None
    reset: str | None = None
    batch: BatchMark | None = None


class UnopenedBatch(BaseModel, frozen=True, validate_by_name=True):
    """A batch that could not be opened: the offsets [from, to) of a partition, and the reason. Its bytes are in
    `_bad`.
    """

    partition: int
    start: int = Field(validation_alias="from", serialization_alias="from", ge=0)
    end: int = Field(validation_alias="to", serialization_alias="to", ge=0)
    reason: str


class LakeOrigin(BaseModel, frozen=True):
    """Identifies the topic's directory: its `id` is made before its first load. `directory`: its path, by which a
    directory that was moved or copied is detected; `replaces`: the ids that it had where it was moved from.
    """

    id: str
    directory: str
    replaces: tuple[str, ...] = ()


class Manifest(BaseModel, frozen=True):
    """The content of `_offsets.json`. `created_ms` since the epoch; `files` and `rows` as published; `quarantined` of
    the rows are records that could not be read. `timezone`: of `dt` and `hr`. `lake`: the same in all loads of a
    directory. `avro_schema`: of the columns; None for raw values. `isolation_level`: which records of transactions
    were read.
    """

    version: int = VERSION
    topic: str
    topic_id: UUID | None = None
    load: int
    job_id: str
    cluster_id: str = ""
    created_ms: int
    rows: int
    files: int
    avro_schema: str | None = None
    partitions: dict[int, PartitionRange]
    quarantined: int = 0
    isolation_level: str | None = None
    timezone: TimeZone = "UTC"
    unopened: list[UnopenedBatch] = []
    lake: LakeOrigin

    def to_bytes(self) -> bytes:
        return (self.model_dump_json(by_alias=True, indent=1, exclude_none=True) + "\n").encode()


def read_manifest(reader: LakeReader, layout: TopicLayout, number: int) -> Manifest | None:
    """Returns the manifest of a load; None if it does not exist. Raises `LakeError` if it cannot be read as one."""
    path = f"{layout.load(number)}/{OFFSETS}"
    data = reader.read(path)
    return None if data is None else parse_manifest(path, data)


def parse_manifest(path: str, data: bytes) -> Manifest:
    """Parses the bytes of a manifest. Raises `LakeError` if they are not a manifest of a load."""
    return parse(Manifest, data, f"{path} is not a manifest of a load")


def parse(model: type[_Model], data: bytes, trouble: str) -> _Model:
    """Parses the bytes of a file of the lake. Raises `LakeError`: `trouble`, and the first field that is wrong."""
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise LakeError(f"{trouble}: " + (f"{where}: " if where else "") + problem["msg"]) from error


def last_manifest(reader: LakeReader, layout: TopicLayout) -> Manifest | None:
    """Returns the newest load's manifest. A load directory without one was not published by this job: raises
    `LakeError`, because continuing would load its offsets again.
    """
    numbers = load_numbers(reader, layout)
    if not numbers:
        return None
    manifest = read_manifest(reader, layout, numbers[-1])
    if manifest is None:
        raise LakeError(f"{layout.load(numbers[-1])} has no {OFFSETS}: no load wrote it; move it away")
    return manifest


def lake_origin(reader: LakeReader, layout: TopicLayout, last: Manifest | None, new_id: str) -> LakeOrigin:
    """Returns the identity of the topic's directory, which gets `new_id` with its first load and with the first one
    after it was moved or copied. It replaces the lakes that it was moved from, also those of which the audit has no
    event; a copy does not replace the lake that it was copied from, nor does a directory whose former path cannot be
    read.
    """
    if last is None:
        return LakeOrigin(id=new_id, directory=layout.base)
    if last.lake.directory == layout.base:
        return last.lake
    root, _, topic = last.lake.directory.rpartition("/")
    try:
        there = last_manifest(reader, TopicLayout(root, topic))
        copied = there is not None and there.lake.id == last.lake.id
    except KlammError:
        copied = True
    replaces = last.lake.replaces if copied else (*last.lake.replaces, last.lake.id)
    return LakeOrigin(id=new_id, directory=layout.base, replaces=replaces)


def check_topic(reader: LakeReader, layout: TopicLayout) -> None:
    """Raises `LakeError` if the topic's directory is a file: file systems differ in how they list a file."""
    if reader.is_file(layout.base):
        raise LakeError(f"{layout.base} is a file; the loads of a topic are in a directory")


def load_numbers(reader: LakeReader, layout: TopicLayout) -> list[int]:
    """Returns the numbers of the published loads, ascending."""
    return sorted(n for n in map(load_number, reader.names(layout.base)) if n is not None)
