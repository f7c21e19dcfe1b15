"""Generations: loads merged into fewer files, published beside them by one rename, with a manifest of their own.

A generation contains all rows of the loads 1 to `last`; rows that were set aside (`_bad`) stay in the loads only. Its
`_generation.json` names each load with the digest of its `_offsets.json`, so that a generation of other loads with the
same numbers is recognised, and each of its files with its size. Generations are numbered like loads; a number is never
reused, because the newest generation is never removed.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from pydantic import BaseModel, Field

from klamm.core.config.section import TimeZone
from klamm.core.errors import ConfigError

from ...publishing.interface import LakeError, LakeReader
from ..layout import GENERATION, TopicLayout, generation_number
from ..manifest import Manifest, parse

VERSION: Final = 1


class MergedLoad(BaseModel, frozen=True):
    """A load that a generation contains. `digest`: the SHA-256 of its `_offsets.json`. `rows`: its rows in the
    generation, by partition. `ends`: the offset at which the next load continues, by partition. `timezone`: of `dt` and
    `hr`.
    """

    load: int = Field(ge=1)
    job_id: str
    created_ms: int
    digest: str
    rows: dict[int, int]
    ends: dict[int, int]
    timezone: TimeZone = "UTC"

    @property
    def created(self) -> datetime:
        return datetime.fromtimestamp(self.created_ms / 1000, UTC)


class DataFile(BaseModel, frozen=True):
    """A data file by its path below the generation."""

    name: str
    bytes: int


class Generation(BaseModel, frozen=True):
    """The content of `_generation.json`."""

    version: int = VERSION
    topic: str
    topic_id: UUID | None = None
    cluster_id: str = ""
    generation: int
    job_id: str
    created_ms: int
    format: str
    partition_by: tuple[str, ...]
    avro_schema: str | None = None
    """Of the columns: that of the newest load which has one."""
    rows: int
    loads: list[MergedLoad] = Field(min_length=1)
    files: list[DataFile]

    @property
    def last(self) -> int:
        """The newest load that it contains."""
        return self.loads[-1].load

    @property
    def size(self) -> int:
        """Bytes of its data files."""
        return sum(file.bytes for file in self.files)

    @property
    def created(self) -> datetime:
        return datetime.fromtimestamp(self.created_ms / 1000, UTC)

    def covers(self, other: Generation) -> bool:
        """Returns True if it contains all loads of `other`, with the same digests."""
        mine = {merged.load: merged.digest for merged in self.loads}
        return all(mine.get(merged.load) == merged.digest for merged in other.loads)

    def to_bytes(self) -> bytes:
        return (self.model_dump_json(indent=1, exclude_none=True) + "\n").encode()


def digest(manifest: bytes) -> str:
    """Returns the digest of a load's `_offsets.json` that a generation stores."""
    return hashlib.sha256(manifest).hexdigest()


def merged_load(manifest: Manifest, manifest_digest: str, rows: dict[int, int]) -> MergedLoad:
    return MergedLoad(
        load=manifest.load,
        job_id=manifest.job_id,
        created_ms=manifest.created_ms,
        digest=manifest_digest,
        rows=rows,
        ends={number: span.end for number, span in sorted(manifest.partitions.items())},
        timezone=manifest.timezone,
    )


def generation_numbers(reader: LakeReader, layout: TopicLayout) -> list[int]:
    """Returns the numbers of the published generations, ascending."""
    return sorted(n for n in map(generation_number, reader.names(layout.generations_root)) if n is not None)


def read_generation(reader: LakeReader, layout: TopicLayout, number: int) -> Generation | None:
    """Returns the manifest of a generation; None if it does not exist. Raises `LakeError` if it cannot be read as
    one.
    """
    path = f"{layout.generation(number)}/{GENERATION}"
    data = reader.read(path)
    return None if data is None else parse(Generation, data, f"{path} is not a manifest of a generation")


def generation_of(reader: LakeReader, layout: TopicLayout, number: int) -> Generation:
    """Returns the manifest of a generation. Raises `ConfigError` if it does not exist."""
    found = read_generation(reader, layout, number)
    if found is None:
        known = ", ".join(map(str, generation_numbers(reader, layout))) or "none"
        raise ConfigError(f"{layout.base}: there is no generation {number} (there are: {known})")
    return found


def generations_of(reader: LakeReader, layout: TopicLayout) -> list[Generation]:
    """Returns all generations in their order, without those that are removed meanwhile. Raises `LakeError` if one has
    no readable manifest.
    """
    found = []
    for number in generation_numbers(reader, layout):
        generation = read_generation(reader, layout, number)
        if generation is not None:
            found.append(generation)
        elif number in generation_numbers(reader, layout):
            raise LakeError(
                f"{layout.generation(number)} has no {GENERATION}; `klamm lake verify` says what else is wrong"
            )
    return found
