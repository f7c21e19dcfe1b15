"""The source loses records that were copied, deletes records before they are copied, or its topic is created again."""

from __future__ import annotations

import itertools
import random
import time
from functools import partial
from pathlib import Path
from typing import Any

from cluster.lives import LIMIT_S, polled
from klamm.core.cluster.mirrors import MirrorTopicNode, topic_path, update
from klamm.core.records.header import iter_headers, rewrite_base
from klamm.core.records.partition import TopicPartition
from klammtest.history import History, Outcome, Send, StoredBatch, read_replica
from klammtest.logs import batch
from mirror.scene import LINK, MirrorCampaign, MirrorScene, MirrorSite

_UNCLEAN = {"unclean.leader.election.enable": "true"}
_values = itertools.count(900_000_000_000)


# -- an unclean election -----------------------------------------------------------------------------------------------


def unclean(at: int, chance: random.Random, scene: MirrorScene) -> None:
    """A leader of the source writes alone and dies; its follower is elected and writes other records at the same
    offsets. What the mirror had copied of the first ones must be set aside, and reported as a cut."""
    tp = TopicPartition(scene.topic, 0)
    _write(scene, chance.randint(1, 5))
    if not scene.source.await_in_sync(scene.topic, 2, LIMIT_S):
        scene.total.wrong(at, "the source's replicas are not in sync before the fault")
    state = scene.source.state(tp)
    assert state is not None
    first, second = state.leader, 1 - state.leader
    scene.source.kill([second])
    alone = _write(scene, chance.randint(1, 5))
    scene.require_follows(at)
    copied = _stored(scene, tp)
    known = _cuts(scene, tp)
    scene.source.kill([first])
    scene.source.start([second])
    after = _write(scene, chance.randint(1, 8))
    if chance.random() < 0.3:
        leader = scene.leader_in(scene.cluster, chance)
        scene.cluster.kill([leader])
        scene.cluster.start([leader])
        scene.total.count("kills")
    scene.source.start([first])
    scene.require_equal(at)
    now = _stored(scene, tp)
    lost = {base: one for base, one in copied.items() if now.get(base) != one}
    gone = {value for one in lost.values() for _, value in one.values}
    _forget(scene, tp, gone)
    if scene.run.plant:
        update(scene.cluster.tree, topic_path(LINK, scene.topic), MirrorTopicNode, _without_cuts)
    new = _cuts(scene, tp)[len(known) :]
    scene.total.count("cuts", len(new))
    scene.total.count("cut-records", len(gone))
    if not lost or not gone.issubset(alone):
        scene.total.wrong(
            at, f"the election of broker {second} lost {gone}, of {alone} written before and {after} after it"
        )
    if [(cut["start"], cut["end"]) for cut in new] != [(min(lost), max(one.next for one in lost.values()))]:
        scene.total.wrong(at, f"the batches at {sorted(lost)} were removed from the mirror, reported are {new}")
    kept = {b.base: b for cut in new for b in read_replica(Path(cut["path"]).parent, -1).batches}
    if kept != lost:
        scene.total.lose(at, f"batches at {sorted(lost)} were removed, those at {sorted(kept)} are kept", len(gone))


def _write(scene: MirrorScene, count: int) -> set[int]:
    """Writes records to partition 0, each in a batch, and returns their values. Not idempotent, but sent again only if
    no broker has taken the request."""
    tp, values = TopicPartition(scene.topic, 0), set()
    for value in itertools.islice(_values, count):
        scene.source.append(scene.topic, batch([b"%d" % value]))
        scene.history.send(tp, Send("campaign", value, Outcome.OK, -1, idempotent=False))
        values.add(value)
    return values


def _forget(scene: MirrorScene, tp: TopicPartition, values: set[Any]) -> None:
    """Leaves out of the history what the source has acknowledged and lost."""
    events = scene.history.partitions[tp]
    events.sends = [send for send in events.sends if send.value not in values]


def _stored(scene: MirrorScene, tp: TopicPartition) -> dict[int, StoredBatch]:
    leader = scene.cluster.state(tp)
    logs = scene.cluster.replicas(tp)
    log = next((one for one in logs if leader is not None and one.broker == leader.leader), logs[0])
    return {one.base: one for one in log.batches}


def _cuts(scene: MirrorScene, tp: TopicPartition) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def read() -> bool:
        row = scene.status().get(tp)
        found[:] = row["cuts"] if row else []
        return row is not None

    polled(read)
    return found


def _without_cuts(node: MirrorTopicNode | None) -> MirrorTopicNode | None:
    return None if node is None else node.model_copy(update={"cuts": ()})


# -- retention ---------------------------------------------------------------------------------------------------------


def retention(at: int, chance: random.Random, scene: MirrorScene) -> None:
    """The source deletes records that are not copied yet, while the link is paused or the target's brokers are dead."""
    paused = chance.random() < 0.5
    if paused:
        scene.mirror("pause", LINK, "--topic", scene.topic)
        polled(lambda: _all_are(scene, "PAUSED"))
    else:
        scene.cluster.kill()
    reached = {tp: [log.end for log in scene.cluster.replicas(tp)] for tp in scene.partitions}
    copied = {tp: max(ends) for tp, ends in reached.items()}
    chosen = scene.partitions if chance.random() < 0.5 else [chance.choice(scene.partitions)]
    ends: dict[TopicPartition, int] = {}

    def ahead() -> bool:
        ends.update(scene.ends(scene.source))
        return all(ends.get(tp, 0) > copied[tp] + 20 for tp in chosen)

    if not polled(ahead):
        scene.total.wrong(at, f"the source took no records: {ends}, copied: {copied}")
    scene.remember()
    before = {tp: chance.randint(copied[tp] + 11, ends[tp]) for tp in chosen}
    scene.clients["source"].delete_records(before)
    for tp, offset in before.items():
        scene.missed[tp].append((min(reached[tp]), offset))
    if paused:
        scene.mirror("resume", LINK, "--topic", scene.topic)
        if chance.random() < 0.3:
            leader = scene.leader_in(scene.cluster, chance)
            scene.cluster.kill([leader])
            scene.cluster.start([leader])
            scene.total.count("kills")
    else:
        scene.cluster.start()
    scene.require_follows(at)
    found = scene.gaps()
    for tp in chosen:
        scene.total.count("gaps")
        if not any(end == before[tp] for _, end in found.get(tp, ())):
            scene.total.wrong(at, f"{tp}: the source begins at {before[tp]}, reported gaps: {found.get(tp)}")


def _all_are(scene: MirrorScene, status: str) -> bool:
    rows = scene.status()
    return len(rows) == len(scene.partitions) and all(row["status"] == status for row in rows.values())


def forget_a_gap(scene: MirrorScene) -> None:
    """The first gap of partition 0, or of another one, is not reported."""
    gaps = scene.reported_gaps
    tp = next(tp for tp, found in gaps.items() if found)
    gaps[tp] = gaps[tp][1:]


# -- created again -----------------------------------------------------------------------------------------------------


def created_again(at: int, chance: random.Random, scene: MirrorScene) -> None:
    """The source's topic is deleted and created again; the old mirror stays, or is deleted to copy the new topic."""
    keeps = scene.run.plant or chance.random() < 0.5
    scene.stop(at, scene.senders)
    scene.remember()
    old, scene.senders = scene.history, []
    scene.source.delete_topic(scene.topic)
    time.sleep(chance.choice((0.0, 0.5, 2.0)))
    polled(partial(_create, scene))
    scene.source.await_in_sync(scene.topic, len(scene.partitions))
    scene.history = History()
    scene.senders = scene.producers(scene.source)
    scene.require_progress(at)
    if not polled(lambda: _all_are(scene, "SOURCE_REPLACED")):
        scene.total.wrong(at, f"the new topic is not reported: {scene.status()}")
    if keeps:
        scene.total.count("kept")
        scene.stop(at, scene.senders)
        scene.replaced, scene.history, scene.senders = True, old, []
    else:
        scene.total.count("copied-anew")
        scene.known = {}
        scene.mirror("resolve", LINK, "--topic", scene.topic, "--take-new", "--yes")
        scene.require_follows(at)


def _create(scene: MirrorScene) -> bool:
    try:
        scene.source.create_topic(scene.topic, len(scene.partitions), {"min.insync.replicas": "1"})
    except RuntimeError:  # the old one is still being deleted
        return False
    return True


def copy_of_the_new_topic(scene: MirrorScene) -> None:
    """The first batch of the new topic is appended to the copies of the old one, in the old one's last epoch."""
    new = next(iter(sorted((scene.source.brokers[0].log_dir / f"{scene.topic}-0").glob("*.log")))).read_bytes()
    _, header = next(iter(iter_headers(new)))
    scene.cluster.kill()
    for broker in scene.cluster.brokers:
        segments = sorted((broker.log_dir / f"{scene.topic}-0").glob("*.log"))
        data = segments[-1].read_bytes()
        *_, (_, last) = iter_headers(data)
        copy = bytearray(new[: header.size])
        rewrite_base(copy, 0, last.next_offset, last.leader_epoch)
        segments[-1].write_bytes(data + copy)


CAMPAIGNS = [
    MirrorCampaign(
        "source-unclean", "at the source a follower that lacks records is elected, and other records get their "
        "offsets; sometimes the mirroring broker dies meanwhile", unclean,
        "a cut is removed from what the link reports", lambda scene: None,
        site=MirrorSite(load=False, topic=_UNCLEAN),
        extra="what the mirror has removed is what was set aside, byte for byte, and what is reported",
    ),
    MirrorCampaign(
        "retention-ahead", "DeleteRecords at the source above the mirror's end, while the link is paused or the "
        "target's brokers are dead; sometimes the mirroring broker dies afterwards", retention,
        "a gap is removed from what the link reports", forget_a_gap,
    ),
    MirrorCampaign(
        "created-again", "the source's topic is deleted and created again; the old "
        "mirror is kept, or the new topic is taken",
        created_again, "the first batch of the new topic is in the old mirror", copy_of_the_new_topic,
        a_life=1, site=MirrorSite(source_lost=0.0),
        extra="it reports SOURCE_REPLACED and copies nothing of the new topic, but all of it after "
        "`klamm mirror resolve --take-new`",
    ),
]  # fmt: skip
