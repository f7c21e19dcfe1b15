"""Anomalies planted at the end of a life, when all is quiet: damaged logs of dead brokers, or a history that says what
did not happen.
"""

from __future__ import annotations

from math import inf
from pathlib import Path

from cluster.lives import LivesScene
from klamm.core.records.header import iter_headers, rewrite_base
from klamm.core.records.partition import TopicPartition
from klammtest.history import Leadership, Outcome, Poll, Send, Watermark

LOST = "the last batch of a partition is cut off all its logs"
MISSING = "the last batch of a partition is cut off one replica's log"
DIFFERENT = "one replica's last batch has another leader epoch"
DOUBLED = "the last batch of a partition is stored again behind itself, by all replicas"
ZERO = "a record's acknowledgement has the offset 0"
VANISHED = "a consumer has received one record more than there is"
STALE = "the newest leader's watermark is below an acknowledged record"
TWO_LEADERS = "a broker's metadata names another leader for an epoch"


def _segments(scene: LivesScene, partition: int = 0) -> list[Path]:
    """Returns the last segment of each replica, after its broker was killed."""
    scene.cluster.kill()
    found = []
    for broker in scene.cluster.brokers:
        directory = broker.log_dir / f"{scene.topic}-{partition}"
        segments = [path for path in sorted(directory.glob("*.log")) if path.stat().st_size]
        found += segments[-1:]
    return found


def _last(segment: Path) -> int:
    """Returns the position of the last batch."""
    return max(position for position, _ in iter_headers(segment.read_bytes()))


def _cut(segment: Path) -> None:
    with segment.open("r+b") as file:
        file.truncate(_last(segment))


def cut_everywhere(scene: LivesScene) -> None:
    for segment in _segments(scene):
        _cut(segment)


def cut_one(scene: LivesScene) -> None:
    _cut(_segments(scene)[-1])


def change_one(scene: LivesScene) -> None:
    segment = _segments(scene)[-1]
    data, place = bytearray(segment.read_bytes()), _last(segment)
    for position, header in iter_headers(bytes(data)):
        if position == place:
            rewrite_base(data, position, header.base_offset, header.leader_epoch + 1)
    segment.write_bytes(data)


def repeat_everywhere(scene: LivesScene) -> None:
    for segment in _segments(scene):
        data = segment.read_bytes()
        again = bytearray(data[_last(segment) :])
        ((_, header),) = iter_headers(bytes(again))
        rewrite_base(again, 0, header.next_offset, header.leader_epoch)
        segment.write_bytes(data + again)


def _partition(scene: LivesScene) -> TopicPartition:
    return TopicPartition(scene.topic, 0)


def _newest(scene: LivesScene) -> Send:
    sends = scene.history.partitions[_partition(scene)].sends
    return max((s for s in sends if s.outcome is Outcome.OK), key=lambda s: s.offset)


def acknowledge_at_zero(scene: LivesScene) -> None:
    sends, newest = scene.history.partitions[_partition(scene)].sends, _newest(scene)
    sends[sends.index(newest)] = newest._replace(offset=0)


def poll_one_more(scene: LivesScene) -> None:
    newest = _newest(scene)
    scene.history.polled(_partition(scene), [Poll("planted", newest.offset + 1_000_000, "gone")])


def answer_stale(scene: LivesScene) -> None:
    newest = _newest(scene)
    scene.history.watermark(_partition(scene), Watermark("planted", 1 << 30, newest.offset, newest.end + 1, inf))


def lead_twice(scene: LivesScene) -> None:
    said = max(scene.history.partitions[_partition(scene)].leaderships, key=lambda one: one.epoch)
    scene.history.led(_partition(scene), Leadership(said.broker + 1, said.epoch, "planted"))
