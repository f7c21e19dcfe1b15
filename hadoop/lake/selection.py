"""Which directories of a topic are read: its loads, or a generation and the loads after it, as of a load or an instant.

Without Spark: `frame` reads them with it, `dataset` without.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from klamm.core.errors import ConfigError
from klamm.schemas.avro.parsing import parse_type

from ..publishing.interface import LakeError, LakeReader
from .generations.generation import Generation, digest, generation_of, generations_of
from .layout import OFFSETS, TopicLayout
from .lineage import Chain
from .listing import LoadEntry, loads_of
from .manifest import check_topic

AsOf = int | datetime | None
Which = int | Literal["latest"] | None
LATEST: Final = "latest"
LOAD: Final = "load"
DIRECTORIES: Final = ("dt", "hr")


@dataclass(frozen=True, slots=True)
class Selection:
    """The parts to read, in the order of their loads. `newest`: rows of later loads, which a generation may hold,
    are left out; None if there are none."""

    parts: Sequence[Part]
    newest: int | None


def select(files: LakeReader, layout: TopicLayout, as_of: AsOf, generation: Which) -> Selection:
    """Returns what `read_lake` reads for these arguments. Raises `ConfigError` when there is nothing to read."""
    if as_of is not None and (isinstance(as_of, bool) or not isinstance(as_of, int | datetime)):
        raise ConfigError(f"as_of: expected the number of a load or a datetime, got {as_of!r}")
    check_topic(files, layout)
    chosen = _generation(files, layout, generation)
    entries = loads_of(files, layout, after=chosen.last if chosen else 0)
    newest = _newest(entries, chosen, as_of)
    wanted = [load for load in entries if load.number <= newest]
    if not wanted and not (chosen and chosen.loads[0].load <= newest):
        raise ConfigError(f"{layout.base}: no load is published" + ("" if as_of is None else f" as of {as_of}"))
    parts = parts_of(layout, wanted)
    if chosen is not None and chosen.files:
        parts.insert(0, _part_of(layout, chosen))
    if not parts:
        raise ConfigError(f"{layout.base}: its loads hold no records")
    return Selection(parts, newest if chosen is not None and chosen.last > newest else None)


def _generation(files: LakeReader, layout: TopicLayout, wanted: int | str | None) -> Generation | None:
    """Returns the wanted generation, if it was made from these loads."""
    if wanted is None:
        return None
    if wanted == LATEST:
        found = next(reversed(generations_of(files, layout)), None)
    elif isinstance(wanted, int):
        found = generation_of(files, layout, wanted)
    else:
        raise ConfigError(f'generation: expected a number or "{LATEST}", got {wanted!r}')
    if found is not None:
        check_source(files, layout, found)
    return found


def check_source(files: LakeReader, layout: TopicLayout, generation: Generation) -> None:
    """Raises `LakeError` unless the newest load of the generation is the present one. This detects another topic's
    loads; `klamm lake verify` compares every load."""
    last = generation.loads[-1]
    data = files.read(f"{layout.load(last.load)}/{OFFSETS}")
    if data is None or digest(data) != last.digest:
        raise LakeError(
            f"{layout.generation(generation.generation)} was made from another load {last.load} than the one in "
            f"{layout.base}; `klamm lake verify` says more, `klamm lake compact` makes a new generation"
        )


def _newest(entries: Sequence[LoadEntry], chosen: Generation | None, as_of: int | datetime | None) -> int:
    """Returns the number of the newest load to be read."""
    if as_of is None:
        return sys.maxsize
    if not isinstance(as_of, datetime):
        return as_of
    until = as_of if as_of.tzinfo else as_of.replace(tzinfo=UTC)
    made = [(merged.load, merged.created) for merged in (chosen.loads if chosen else ())]
    made += [(load.number, load.created) for load in entries]
    # A load is not read without the earlier ones: the clocks of their drivers may have been ahead.
    return max((number for number, created in made if created <= until), default=0)


@dataclass(frozen=True, slots=True)
class Part:
    """Directories that one job wrote. `sample` is one of its files, with its schema; `files`: of a generation, the
    paths of all its files, which themselves have the column `load`; of a load it is in the path below `base`.
    """

    base: str
    path: str
    sample: str
    partition_by: tuple[str, ...]
    avro_schema: str | None = None
    files: tuple[str, ...] = ()

    @property
    def sources(self) -> Sequence[str]:
        """Returns the paths that Spark reads. Given a directory, Spark reads the files that it finds and skips those
        that a concurrent `gc` removes, without an error. A file that is named must exist."""
        return self.files or (self.path,)

    @property
    def format(self) -> str:
        return self.sample.rpartition(".")[2]


def parts_of(layout: TopicLayout, loads: Iterable[LoadEntry]) -> list[Part]:
    """Returns one part for each load that has rows for readers."""
    return [
        _part(layout.base, layout.load(load.number), load.readable[0], load.manifest.avro_schema)
        for load in loads
        if load.readable
    ]


def _part_of(layout: TopicLayout, generation: Generation) -> Part:
    path = layout.generation(generation.generation)
    files = tuple(f"{path}/{file.name}" for file in generation.files)
    return _part(path, path, generation.files[0].name, generation.avro_schema, files)


def _part(base: str, path: str, name: str, avro_schema: str | None, files: tuple[str, ...] = ()) -> Part:
    directories = tuple(folder.partition("=")[0] for folder in name.split("/")[:-1])
    if directories not in (DIRECTORIES[:1], DIRECTORIES):
        raise LakeError(f"{path}/{name} is in no directory of a day or an hour")
    return Part(base, path, f"{path}/{name}", directories, avro_schema, files)


def partitioning(parts: Iterable[Part]) -> tuple[str, ...]:
    """Returns the directory columns that all loads have."""
    found = {part.partition_by for part in parts}
    return DIRECTORIES if found == {DIRECTORIES} else DIRECTORIES[:1]


def chains_of(parts: Sequence[Part]) -> list[Chain]:
    """Returns the chain of each part; empty where all newer parts have the same schema, or it is not known."""
    chain: Chain = ()
    last: str | None = None
    found: list[Chain] = []
    for part in reversed(parts):
        if part.avro_schema not in (None, last):
            chain = (*chain, parse_type(part.avro_schema or ""))
            last = part.avro_schema
        found.append(chain if part.avro_schema is not None and len(chain) > 1 else ())
    return found[::-1]
