"""What a lake's manifests say: topics and their loads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from klamm.core.errors import ConfigError
from klamm.hadoop.lake.files import LakeFiles
from klamm.hadoop.layout import OFFSETS, TopicLayout, is_data
from klamm.hadoop.manifest import Manifest, load_numbers, read_manifest
from klamm.hadoop.publishing.seam import LakeError


@dataclass(frozen=True, slots=True)
class LoadEntry:
    """A published load: its manifest, and its data files as (path below the load, bytes)."""

    manifest: Manifest
    files: tuple[tuple[str, int], ...]

    @property
    def number(self) -> int:
        return self.manifest.load

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.files)

    @property
    def created(self) -> datetime:
        return datetime.fromtimestamp(self.manifest.created_ms / 1000, UTC)


def loads_of(files: LakeFiles, layout: TopicLayout) -> list[LoadEntry]:
    """All loads in their order. `LakeError` when one has no manifest, or one that cannot be read."""
    return [_entry(files, layout, number) for number in load_numbers(files, layout)]


def load_of(files: LakeFiles, layout: TopicLayout, number: int) -> LoadEntry:
    """`ConfigError` when there is no such load."""
    numbers = load_numbers(files, layout)
    if number not in numbers:
        known = f"{numbers[0]} to {numbers[-1]}" if numbers else "none"
        raise ConfigError(f"{layout.base}: there is no load {number} (there are: {known})")
    return _entry(files, layout, number)


def _entry(files: LakeFiles, layout: TopicLayout, number: int) -> LoadEntry:
    manifest = read_manifest(files, layout, number)
    if manifest is None:
        raise LakeError(f"{layout.load(number)} has no {OFFSETS}; `klamm lake verify` says what else is wrong")
    found = tuple((name, size) for name, size in files.files(layout.load(number)) if is_data(name))
    return LoadEntry(manifest, found)


def spans(manifests: Iterable[Manifest]) -> dict[int, tuple[int, int]]:
    """By partition: where the first load began and where the last one ended."""
    found: dict[int, tuple[int, int]] = {}
    for manifest in manifests:
        for partition, span in manifest.partitions.items():
            start, end = found.get(partition, (span.start, span.end))
            found[partition] = min(start, span.start), max(end, span.end)
    return found
