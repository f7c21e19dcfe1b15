"""`klamm lake gc`: removes only the files that no reader needs any more.

Rules.
- Published loads are never removed: plain readers see them, the next load continues from them, and generations are
  verified against them.
- A generation is removed when a newer one contains all of its loads, with the same digests, has all of its files, and
  was published longer ago than the retention: a reader that chose the older one has had that long to finish. The newest
  generation is always kept.
- A staging directory is removed when its job is dead, by the heartbeat, as every load does: no reader sees it.
- Files that Klamm did not write are not removed; `klamm lake verify` names them. Nor is a generation whose manifest
  cannot be read.
- Each removal is one rename into `_staging`, then the deletion: after a crash in between, the next run or the next load
  removes the rest. Fault points: `gc.planned`, `gc.moved`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from klamm.core.faults import fault_point

from ...load.staging import bury, dead, sweep
from ...publishing.interface import LakeError, LakeUnavailableError, Publisher
from ..layout import TopicLayout
from .generation import Generation, generation_numbers, read_generation


@dataclass(frozen=True, slots=True)
class Item:
    """A generation, or an entry of `_staging`, and why it is removed or kept."""

    topic: str
    what: str
    name: str
    remove: bool
    bytes: int
    why: str

    def line(self, dry_run: bool) -> str:
        """`remove topic=trips generation=1 bytes=…: …`."""
        verb = "keep" if not self.remove else "would remove" if dry_run else "remove"
        return f"{verb} topic={self.topic} {self.what}={self.name} bytes={self.bytes}: {self.why}"


def plan(publisher: Publisher, layout: TopicLayout, older_than_s: float, staging_retention_s: float) -> list[Item]:
    """Returns the entries that `collect` would remove, and each generation that is kept. Changes nothing."""
    found = [_staged(publisher, layout, name) for name in dead(publisher, layout, staging_retention_s)]
    return found + _generations(publisher, layout, older_than_s)


def collect(publisher: Publisher, layout: TopicLayout, older_than_s: float, staging_retention_s: float) -> list[Item]:
    """Removes the entries that can be removed; returns the findings. A concurrent removal is not an error."""
    found = plan(publisher, layout, older_than_s, staging_retention_s)
    fault_point("gc.planned")
    sweep(publisher, layout, staging_retention_s)
    for item in found:
        if item.remove and item.what == "generation":
            bury(publisher, layout, layout.generation(int(item.name)))
    return found


def _staged(publisher: Publisher, layout: TopicLayout, name: str) -> Item:
    size = sum(size for _, size in publisher.files(f"{layout.staging_root}/{name}"))
    return Item(layout.topic, "staging", name, True, size, "its job is dead")


def _generations(publisher: Publisher, layout: TopicLayout, older_than_s: float) -> list[Item]:
    numbers = generation_numbers(publisher, layout)
    readable: list[Generation] = []
    items = []
    for number in numbers:
        try:
            generation = read_generation(publisher, layout, number)
        except LakeUnavailableError:
            raise
        except LakeError as error:
            items.append(_kept(publisher, layout, number, str(error)))
            continue
        if generation is not None:
            readable.append(generation)
        elif number in generation_numbers(publisher, layout):
            items.append(_kept(publisher, layout, number, "it has no manifest"))
    judged = [_judged(publisher, layout, generation, readable, older_than_s) for generation in readable]
    return sorted(items + judged, key=lambda item: int(item.name))


def _judged(
    publisher: Publisher, layout: TopicLayout, generation: Generation, all_: Sequence[Generation], older_than_s: float
) -> Item:
    number = generation.generation

    def item(remove: bool, why: str) -> Item:
        return Item(layout.topic, "generation", str(number), remove, generation.size, why)

    later = (g for g in all_ if g.generation > number and g.covers(generation))
    newer = [g.generation for g in later if _is_whole(publisher, layout, g)]
    for successor in newer:
        # A directory's time is that of the last file created in it, just before it was published; by the file system's
        # clock.
        age = publisher.age_s(layout.generation(successor))
        if age is not None and age > older_than_s:
            return item(True, f"generation {successor} holds its loads")
    if newer:
        return item(False, f"generation {newer[0]} holds its loads, but readers may still have this one")
    return item(False, "no newer generation holds its loads")


def _is_whole(publisher: Publisher, layout: TopicLayout, generation: Generation) -> bool:
    """Returns True if its files exist with the sizes in its manifest."""
    there = dict(publisher.files(layout.generation(generation.generation)))
    return all(there.get(file.name) == file.bytes for file in generation.files)


def _kept(publisher: Publisher, layout: TopicLayout, number: int, why: str) -> Item:
    size = sum(size for _, size in publisher.files(layout.generation(number)))
    return Item(layout.topic, "generation", str(number), False, size, why)
