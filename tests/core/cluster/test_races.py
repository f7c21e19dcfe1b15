"""Several brokers change the metadata at once, over coordinations that lose requests and answers."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress

from klamm.core.cluster.changes import MetadataChange, ring_path
from klamm.core.cluster.cluster import Cluster
from klamm.core.cluster.image import ClusterImage
from klamm.core.cluster.image_reader import read_image
from klamm.core.cluster.tree import paths
from klamm.core.errors import BrokerError, CoordinationError, ErrorCode
from klamm.core.records.partition import TopicPartition
from klamm.core.replication.leader import IsrProposal
from klamm.core.replication.partition_state import with_isr
from klammtest.clusters.joined import FaultyCoordination, Joined
from klammtest.waiting import eventually

BROKERS = 3
ROUNDS = 25


class Epochs:
    """Checks every image that any broker sees: leader epochs never fall, and each has one leader."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leaders: dict[tuple[object, TopicPartition, int], tuple[int, int]] = {}
        self.wrong: list[str] = []

    def watch(self, cluster: Cluster) -> None:
        newest: dict[tuple[object, TopicPartition], int] = {}

        def see(image: ClusterImage) -> None:
            with self._lock:
                for tp, partition in image.partitions():
                    key = image.topics[tp.topic].topic_id, tp
                    state = partition.state
                    if state.leader_epoch < newest.get(key, -1):
                        self.wrong.append(f"{tp}: epoch {state.leader_epoch} after {newest[key]}")
                    newest[key] = state.leader_epoch
                    leads = state.leader, state.leader_broker_epoch
                    if self._leaders.setdefault((*key, state.leader_epoch), leads) != leads:
                        self.wrong.append(f"{tp}: two leaders in epoch {state.leader_epoch}")

        cluster.on_change(see)


def proposes(cluster: Cluster, chosen: random.Random) -> None:
    """Shrinks or grows the ISR of what it leads."""
    image, own = cluster.image(), cluster.own_registration
    asked = []
    for tp, partition in image.partitions():
        if own is None or partition.state.leader_broker_epoch != own.epoch or partition.leader != own.broker_id:
            continue
        away = [number for number in partition.replicas if number not in partition.isr]
        if away and away[0] in image.brokers:
            added = image.registrations[away[0]]
            state = with_isr(partition.state, (*partition.isr, away[0]), {away[0]: added.data_id}, 1)
            asked.append((tp, IsrProposal(image.version, state, (added,))))
        elif len(partition.isr) > 1 and chosen.random() < 0.5:
            kept = tuple(member for member in partition.isr if member == own.broker_id)
            asked.append((tp, IsrProposal(image.version, with_isr(partition.state, kept, {}, 1), ())))
    cluster.propose(asked)


def changes_topics(cluster: Cluster, chosen: random.Random, made: dict[str, bool]) -> None:
    """Creates and deletes topics; notes what is certain. While a broker is evicted there may be too few of them."""
    name = f"t{chosen.randrange(6)}"
    try:
        if made.get(name):
            cluster.delete_topic(name)
            made[name] = False
        else:
            cluster.create_topic(name, 3, BROKERS)
            made[name] = True
    except BrokerError as error:
        if error.code in (ErrorCode.topic_already_exists, ErrorCode.unknown_topic_or_partition):
            raise AssertionError(f"{name}: an unanswered change was taken for another's: {error}") from error


def spoils(faulty: FaultyCoordination, chosen: random.Random) -> None:
    if chosen.random() < 0.3:
        chosen.choice([faulty.lose_answer, faulty.lose_request])()


def test_every_change_is_made_once_and_every_broker_sees_the_same(join: Joined) -> None:
    clusters = [join(number) for number in range(BROKERS)]
    eventually(lambda: all(len(cluster.image().brokers) == BROKERS for cluster in clusters), "all brokers")
    epochs = Epochs()
    for cluster in clusters:
        epochs.watch(cluster)
    join.unreachable.add(2)
    failed: list[BaseException] = []
    made: dict[str, bool] = {}

    def run(number: int, step: Callable[[random.Random], None]) -> None:
        chosen = random.Random(number)
        try:
            for _ in range(ROUNDS):
                spoils(join.faulty[number], chosen)
                with suppress(CoordinationError):
                    step(chosen)
        except BaseException as error:
            failed.append(error)

    def controls(chosen: random.Random) -> None:
        changes_topics(clusters[0], chosen, made)
        proposes(clusters[0], chosen)

    def restarts(chosen: random.Random) -> None:
        """It is evicted, once in a session time-out."""
        proposes(clusters[2], chosen)
        own = clusters[2].own_registration
        if own is not None and chosen.random() < 0.2:
            clusters[1].suspect(2, own.incarnation)

    steps = (controls, lambda chosen: proposes(clusters[1], chosen), restarts)
    threads = [threading.Thread(target=run, args=(number, step)) for number, step in enumerate(steps)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for faulty in join.faulty.values():
        faulty.answer_all()
    assert not failed
    clusters[0].create_topic("last", 1, 1)
    tree = join.coordinations[0]

    def agree() -> bool:
        now = read_image(tree)
        return (
            len(now.brokers) == BROKERS
            and all(cluster.image() == now for cluster in clusters)
            and all(
                partition.state.leader_broker_epoch == now.brokers[partition.leader].epoch
                for _, partition in now.partitions()
                if partition.leader >= 0
            )
        )

    eventually(agree, "one image everywhere")
    assert not epochs.wrong
    assert {name for name, there in made.items() if there} == set(clusters[0].image().topics) - {"last"}
    version = clusters[0].image().version
    for number in range(max(1, version - 60), version + 1):
        path = ring_path(number)
        assert MetadataChange.decode(path, tree.get(path)[0]).version == number
    assert len(tree.children(paths.INCARNATIONS)) == BROKERS
