"""Lists a lake's topics and loads from its manifests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from klamm.core.errors import ConfigError

from ..publishing.interface import LakeError, LakeReader
from .generations.generation import digest
from .layout import BAD, OFFSETS, TopicLayout, is_data
from .manifest import Manifest, load_numbers, parse_manifest


@dataclass(frozen=True, slots=True)
class LoadEntry:
    """A published load: its manifest with its digest, and its data files as (path below the load, bytes)."""

    manifest: Manifest
    files: tuple[tuple[str, int], ...]
    digest: str

    @property
    def number(self) -> int:
        return self.manifest.load

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.files)

    @property
    def readable(self) -> list[str]:
        """The files that readers see: those that are not set aside."""
        return [name for name, _ in self.files if not name.startswith(f"{BAD}/")]

    @property
    def created(self) -> datetime:
        return datetime.fromtimestamp(self.manifest.created_ms / 1000, UTC)


def loads_of(files: LakeReader, layout: TopicLayout, after: int = 0) -> list[LoadEntry]:
    """Returns all loads after the number `after`, in their order. Raises `LakeError` if one has no readable
    manifest.
    """
    return [_entry(files, layout, number) for number in load_numbers(files, layout) if number > after]


def load_of(files: LakeReader, layout: TopicLayout, number: int) -> LoadEntry:
    """Returns the load of this number. Raises `ConfigError` if it does not exist."""
    numbers = load_numbers(files, layout)
    if number not in numbers:
        known = f"{numbers[0]} to {numbers[-1]}" if numbers else "none"
        raise ConfigError(f"{layout.base}: there is no load {number} (there are: {known})")
    return _entry(files, layout, number)


def _entry(files: LakeReader, layout: TopicLayout, number: int) -> LoadEntry:
    path = f"{layout.load(number)}/{OFFSETS}"
    data = files.read(path)
    if data is None:
        raise LakeError(f"{layout.load(number)} has no {OFFSETS}; `klamm lake verify` says what else is wrong")
    found = tuple((name, size) for name, size in files.files(layout.load(number)) if is_data(name))
    return LoadEntry(parse_manifest(path, data), found, digest(data))


def spans(manifests: Iterable[Manifest]) -> dict[int, tuple[int, int]]:
    """Returns for each partition the first offset of the first load and the end of the last one."""
    found: dict[int, tuple[int, int]] = {}
    for manifest in manifests:
        for partition, span in manifest.partitions.items():
            start, end = found.get(partition, (span.start, span.end))
            found[partition] = min(start, span.start), max(end, span.end)
    return found
