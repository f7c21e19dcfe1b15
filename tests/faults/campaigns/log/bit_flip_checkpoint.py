"""Flips one bit in a file that a log keeps beside its segments: checkpoints, leader epochs, producer states,
metadata.
"""

from __future__ import annotations

from pathlib import Path

from harness import Result, Run, heard
from klamm.core.errors import KlammError
from klamm.core.log.log_directory import CLEAN_SHUTDOWN, META
from klamm.core.log.partition_log import PartitionLog
from klamm.core.log.segment.naming import PARTITION_METADATA
from klamm.core.records.header import BatchHeader
from logs.flips import Damage, Flip, choose, damage_each, verdict
from logs.template import IDEMPOTENT, TOPIC_IDS, Template, Written, closing, consume, open_manager

ENDINGS = ("-checkpoint", ".snapshot", META, PARTITION_METADATA, CLEAN_SHUTDOWN)


class BitFlipCheckpoint:
    name = "bit-flip-checkpoint"
    injects = (
        "one bit of a checkpoint (recovery points, log starts, high watermarks, leader epochs), of a snapshot of the "
        "producers, of meta.properties, partition.metadata or the mark of an orderly stop"
    )
    asserts = (
        "it is detected, or the broker refuses to start in one line; all records are served whole, a retry of the"
        " last batch of each producer is a duplicate, each epoch ends where it did"
    )
    plants = "the log start is set behind the first batch, as by a wrong checkpoint that is trusted"
    tools = ()

    def run(self, run: Run) -> Result:
        return damage_each(run, 4, _inject, clean=lambda n: n % 2 == 0)


def _inject(damage: Damage, total: Result) -> None:
    i, chance, template, folder = damage.number, damage.chance, damage.template, damage.folder
    flip = choose(template.folder, _used(template), chance)
    flip.apply(folder)
    total.acknowledged += template.records
    with heard() as said:
        try:
            manager = open_manager(folder)
        except KlammError as error:
            total.count("refused-to-open")
            verdict(i, flip, "\n" not in str(error), total)
            return
        with closing(manager):
            if manager.meta.directory_id.int == 0 or not manager.logs():
                said.append("nothing was opened")
            for tp, written in template.content.items():
                log = manager.logs().get(tp)
                if log is None or log.topic_id != TOPIC_IDS[tp.topic]:
                    total.count("set-aside-by-the-broker")  # `LogManager.create` notices a wrong topic id
                    said.append("another topic's id")
                    continue
                _check(i, flip, log, written[1:] if damage.plant else written, written, total)
    healed = (folder / flip.path).is_file() and (folder / flip.path).read_bytes() == (
        template.folder / flip.path
    ).read_bytes()
    verdict(i, flip, bool(said) or healed, total)


def _used(template: Template) -> list[Path]:
    """Returns the files that are read. Of each partition's snapshots that is the newest; an older one is read only if
    the newest is damaged.
    """
    newest = {path.parent: path for path in template.files(".snapshot")}
    return [
        path for path in template.files(*ENDINGS) if newest.get(path.parent, path) == path or not _is_snapshot(path)
    ]


def _is_snapshot(path: Path) -> bool:
    return path.name.endswith(".snapshot")


def _check(
    i: int, flip: Flip, log: PartitionLog, served_from: list[Written], written: list[Written], total: Result
) -> None:
    served = consume(log, served_from)
    for what in served.corrupt:
        total.corrupt(i, f"{flip}: {what}")
    missing = [w for w in written if w.base not in served.seen]
    if missing:
        total.lose(
            i,
            f"{flip}: {log.tp} does not serve {missing[0].base}: {served.detected[:1]}",
            sum(w.records for w in missing),
        )
    epochs = [BatchHeader.parse(w.data).leader_epoch for w in written]
    for epoch in sorted(set(epochs))[:-1]:
        end = next(w.base for w, e in zip(written, epochs, strict=True) if e > epoch)
        if log.end_offset_for_epoch(epoch) != (epoch, end):
            total.wrong(i, f"{flip}: epoch {epoch} ends at {log.end_offset_for_epoch(epoch)}, not {end}")
    if log.tp == IDEMPOTENT:
        _retry(i, flip, log, written, total)


def _retry(i: int, flip: Flip, log: PartitionLog, written: list[Written], total: Result) -> None:
    last = {BatchHeader.parse(w.data).producer_id: w for w in written}
    for w in last.values():
        try:
            again = log.append_as_leader(bytearray(w.data), log.leader_epoch)
        except KlammError as error:
            total.wrong(i, f"{flip}: a retry is refused: {error}")
            continue
        if not again.duplicate or again.base_offset != w.base:
            total.wrong(i, f"{flip}: a retry of the batch at {w.base} was stored again, at {again.base_offset}")


CAMPAIGNS = [BitFlipCheckpoint()]
