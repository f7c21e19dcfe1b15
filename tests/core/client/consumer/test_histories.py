"""A position means something in one topic, and in one history of it (design D5a): consumers over a topic that is
deleted and created again, and over a log that lost its end."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.client.consumer import fetcher, node_fetcher
from klamm.core.client.consumer.fetcher import Fetcher
from klamm.core.client.consumer.positions import Positions
from klamm.core.client.errors import LogTruncatedError, NoOffsetError
from klamm.core.client.network.metadata import TopicView
from klamm.core.errors import BrokerError, KlammError
from klamm.core.groups.membership.member import LostOwnershipError
from klamm.core.protocol.apis import SPOKEN, ApiKey
from klamm.core.records.codecs import CodecTable
from klamm.core.records.partition import TopicPartition
from klammtest.broker import RunningBroker, running_broker
from klammtest.clients.readers import client_config, produce, read
from klammtest.guarantees import guarantee
from klammtest.waiting import eventually

NUMBER = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    limits = {"group.min.session.timeout.ms": 1_000}
    with running_broker(tmp_path_factory.mktemp("histories"), broker=limits) as running:
        yield running


@pytest.fixture
def topic(client: ClusterClient) -> str:
    name = f"history-{next(NUMBER)}"
    client.create_topics({name: NewTopic(1)})
    return name


def create_again(client: ClusterClient, config: dict[str, Any], topic: str, records: int) -> None:
    """With so many records."""
    client.delete_topics([topic])
    eventually(lambda: not client.topic_ids([topic]), "the topic is gone")
    client.create_topics({topic: NewTopic(1)})
    produce(config, topic, {0: [b"new-%d" % n for n in range(records)]})


def read_all(consumer: klamm.Consumer, records: int) -> list[int]:
    """The offsets of new records, until the last one has come; `UnknownTopicError` is passed over."""
    offsets: list[int] = []

    def last_came() -> bool:
        try:
            offsets.extend(r.offset for r in consumer.poll(0.2) if r.value.startswith(b"new"))
        except BrokerError as error:
            if "no topic" not in str(error):
                raise
        return bool(offsets) and offsets[-1] == records - 1

    eventually(last_came, "the last record")
    return offsets


def names_for_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a broker whose OffsetCommit carries no topic ids."""
    monkeypatch.setitem(SPOKEN, ApiKey.OFFSET_COMMIT, (2, 9))


def names_for_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a broker whose Fetch carries no topic ids: it does not refuse one of a deleted topic."""
    monkeypatch.setitem(SPOKEN, ApiKey.FETCH, (4, 12))


def no_last_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a broker whose Fetch does not carry the epoch of the last record."""
    monkeypatch.setitem(SPOKEN, ApiKey.FETCH, (4, 11))


def by_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that neither send nor compare topic ids."""
    names_for_commits(monkeypatch)
    names_for_fetches(monkeypatch)
    monkeypatch.setattr(fetcher._Check, "replaced", lambda *_: False)
    monkeypatch.setattr(ClusterClient, "_of_deleted_topics", lambda *_: set())


@guarantee("A2", "a consumer without a group reads a topic that was created again from its start", plant=by_name_alone)
def test_reading_does_not_go_on_in_another_topic(broker: RunningBroker, client: ClusterClient, topic: str) -> None:
    config = client_config(broker)
    partition = TopicPartition(topic, 0)
    produce(config, topic, {0: [b"old"] * 100})
    with klamm.Consumer(config) as consumer:
        consumer.assign([partition])
        assert len(read(consumer, 100)) == 100
        consumer.pause([partition])
        create_again(client, config, topic, 250)
        consumer.resume([partition])
        assert read_all(consumer, 250) == list(range(250))


@guarantee("A2", "a commit of what was read in a deleted topic is not stored for its successor", plant=by_name_alone)
@pytest.mark.parametrize("explicit", [True, False], ids=["offsets", "all"])
@pytest.mark.parametrize("protocol", ["classic", "by hand"])
@pytest.mark.parametrize("ids", [True, False], ids=["to any broker", "to one that takes names"])
def test_a_late_commit_is_not_stored(
    broker: RunningBroker,
    client: ClusterClient,
    topic: str,
    protocol: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    explicit: bool,
    ids: bool,
) -> None:
    if not ids:
        names_for_commits(monkeypatch)
    config = client_config(broker, group_id=f"group-{topic}", group_protocol="classic", enable_auto_commit=False)
    partition = TopicPartition(topic, 0)
    produce(config, topic, {0: [b"old"] * 1_500})
    with klamm.Consumer(config) as consumer:
        if protocol == "classic":
            consumer.subscribe([topic])
        else:
            consumer.assign([partition])
        assert len(read(consumer, 1_500)) == 1_500
        create_again(client, config, topic, 2_500)
        with contextlib.suppress(LostOwnershipError):  # unless the consumer has noticed before
            consumer.commit({partition: 1_500} if explicit else None)
    with klamm.Consumer(config, topics=[topic]) as consumer:
        assert read_all(consumer, 2_500) == list(range(2_500))


class Fetches:
    """Records the outcomes of this process's consumer fetches, each of one partition."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failed = 0
        self.answered: list[int] = []
        """The offset of each, in order."""
        fetch = ClusterClient.fetch

        def noted(client: ClusterClient, node_id: int, offsets: Mapping[TopicPartition, int], **more: Any) -> Any:
            try:
                answers = fetch(client, node_id, offsets, **more)
            except KlammError:
                self.failed += 1
                raise
            self.answered += offsets.values()
            return answers

        monkeypatch.setattr(ClusterClient, "fetch", noted)


def watched_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_fetcher, "UNWATCHED_S", float("inf"))


@guarantee("A2", "nor after what was buffered when the topic was created again", plant=watched_for_ever)
def test_a_full_buffer_hides_no_other_topic(
    broker: RunningBroker, client: ClusterClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names_for_fetches(monkeypatch)
    config, fetches = client_config(broker, max_partition_fetch_bytes=1, fetch_max_bytes=1), Fetches(monkeypatch)
    config["producer"]["linger.ms"] = 60_000  # one batch for each flush
    for _ in range(5):
        produce(config, topic, {0: [b"old"] * 20})
    with klamm.Consumer(config) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert len(consumer.poll(60, 1)) == 1
        eventually(lambda: fetches.answered == [0, 20], "two batches are buffered, and there is no room for more")
        create_again(client, config, topic, 250)
        time.sleep(1.1)  # longer than UNWATCHED_S; more does no harm
        assert read_all(consumer, 250) == list(range(250))


def blind_to_the_high_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consumers that do not notice a high watermark that fell."""
    take = node_fetcher.NodeFetcher._take

    def forgetting(self: node_fetcher.NodeFetcher, state: Any, *args: Any) -> None:
        state.high_watermark = -1
        take(self, state, *args)

    monkeypatch.setattr(node_fetcher.NodeFetcher, "_take", forgetting)


@guarantee("A2", "nor where the high watermark alone shows that it was", plant=blind_to_the_high_watermark)
def test_a_lower_high_watermark_shows_another_topic(
    broker: RunningBroker, client: ClusterClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No fetch is under way while the topic is created again, and the next one comes before `UNWATCHED_S` is over."""
    names_for_fetches(monkeypatch)
    monkeypatch.setattr(node_fetcher, "UNWATCHED_S", float("inf"))
    config = client_config(broker, max_partition_fetch_bytes=1, fetch_max_bytes=1)
    config["producer"]["linger.ms"] = 60_000  # one batch for each flush
    for _ in range(5):
        produce(config, topic, {0: [b"old"] * 20})
    fetches = Fetches(monkeypatch)
    with klamm.Consumer(config) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert len(consumer.poll(60, 1)) == 1
        eventually(lambda: fetches.answered == [0, 20], "two batches are buffered, and there is no room for more")
        create_again(client, config, topic, 80)
        assert read_all(consumer, 80) == list(range(80))


def compared_before_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that send no topic ids, and compare them before a commit and not after it."""
    names_for_commits(monkeypatch)
    monkeypatch.setattr(ClusterClient, "_commit_by_name", commit_after_comparing)


def commit_after_comparing(client: ClusterClient, committer: Any, offsets: Any, timeout_s: Any) -> set[str]:
    gone = client._of_deleted_topics(offsets, timeout_s)
    if not gone:
        client._commit_once(committer, offsets, timeout_s)
    return gone


@guarantee("A2", "nor where the topic is created again while the commit is on its way", plant=compared_before_alone)
@pytest.mark.parametrize("ids", [True, False], ids=["to any broker", "to one that takes names"])
def test_a_commit_that_is_overtaken_is_not_stored(
    broker: RunningBroker, client: ClusterClient, topic: str, monkeypatch: pytest.MonkeyPatch, *, ids: bool
) -> None:
    if not ids:
        names_for_commits(monkeypatch)
    config = client_config(broker, group_id=f"group-{topic}", group_protocol="classic", enable_auto_commit=False)
    partition, call = TopicPartition(topic, 0), ClusterClient.call_coordinator
    produce(config, topic, {0: [b"old"] * 100})

    def overtaken(self: ClusterClient, group: str, api: ApiKey, *args: Any, **more: Any) -> Any:
        sent = more.get("max_version") is not None or SPOKEN[ApiKey.OFFSET_COMMIT][1] >= 10
        if api is ApiKey.OFFSET_COMMIT and sent and client.topic_ids([topic]) == before:
            create_again(client, config, topic, 250)
        return call(self, group, api, *args, **more)

    with klamm.Consumer(config) as consumer:
        consumer.assign([partition])
        assert len(read(consumer, 100)) == 100
        before = client.topic_ids([topic])
        monkeypatch.setattr(ClusterClient, "call_coordinator", overtaken)
        with contextlib.suppress(LostOwnershipError):
            consumer.commit()
    with klamm.Consumer(config, topics=[topic]) as consumer:
        assert read_all(consumer, 250) == list(range(250))


def read_both(broker: RunningBroker, client: ClusterClient, topic: str, protocol: str) -> None:
    """A member over a deletion, and the offset that it leaves."""
    config = client_config(broker, group_id=f"group-{topic}", group_protocol=protocol, auto_commit_interval_ms=50)
    partition = TopicPartition(topic, 0)
    produce(config, topic, {0: [b"old"] * 1_500})
    with klamm.Consumer(config, topics=[topic]) as consumer:
        assert len(read(consumer, 1_500)) == 1_500
        consumer.pause([partition])
        create_again(client, config, topic, 2_500)
        if partition in consumer.assignment():
            consumer.resume([partition])
        assert sorted(set(read_all(consumer, 2_500))) == list(range(2_500))
    with klamm.Consumer(config) as consumer:
        consumer.assign([partition])
        assert consumer.committed([partition])[partition].offset == 2_500


@guarantee("A2", "a member goes on in a topic that was created again, from its start", plant=by_name_alone)
def test_a_classic_member_reads_the_successor_whole(broker: RunningBroker, client: ClusterClient, topic: str) -> None:
    read_both(broker, client, topic, "classic")


def test_a_registry_member_reads_the_successor_whole(broker: RunningBroker, client: ClusterClient, topic: str) -> None:
    """Here the member too notices, in the coordination (`tests/core/groups`)."""
    read_both(broker, client, topic, "registry")


def test_offsets_of_a_deleted_topic_are_none_of_its_successor(
    broker: RunningBroker, client: ClusterClient, topic: str
) -> None:
    """With `auto.offset.reset` none the error says why."""
    config = client_config(broker, auto_offset_reset="none")
    partition = TopicPartition(topic, 0)
    produce(config, topic, {0: [b"old"] * 10})
    with klamm.Consumer(config) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        assert len(read(consumer, 10)) == 10
        consumer.pause([partition])
        create_again(client, config, topic, 20)
        consumer.resume([partition])
        with pytest.raises(NoOffsetError, match="is of a topic that was deleted and created again"):
            consumer.poll(60.0)
        consumer.seek(partition, 5)
        assert read_all(consumer, 20) == list(range(5, 20))


def without_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that do not ask where their leader epoch ended, nor are told."""
    no_last_epochs(monkeypatch)
    monkeypatch.setattr(Fetcher, "_epoch_ends", lambda *_: ({}, {}))


@guarantee("A1", "a consumer whose log lost its end goes on at the end of what is left", plant=without_epochs)
def test_a_log_from_an_older_backup(tmp_path: Path) -> None:
    """70 records are in the backup, 120 were read; 60 others take the place of the 50 that were lost."""
    partition = TopicPartition("t", 0)
    with running_broker(tmp_path, topics={"t": {"partitions": 1}}) as broker:
        config = client_config(broker)
        config["consumer"]["auto.offset.reset"] = "latest"
        grouped = {**config, "consumer": {**config["consumer"], "group.id": "g"}}
        strict = {**config, "consumer": {**grouped["consumer"], "auto.offset.reset": "none"}}
        produce(config, "t", {0: [b"kept"] * 70})
        broker.stop()
        shutil.copytree(broker.folder / "data", tmp_path / "backup")
        broker.start()
        produce(config, "t", {0: [b"lost"] * 50})
        with klamm.Consumer(config) as alone:
            alone.assign([partition])
            alone.seek(partition, 0)
            assert len(read(alone, 120)) == 120
            with klamm.Consumer(grouped, topics=["t"]) as member:
                eventually(lambda: partition in member.assignment(), "assigned")
                member.seek(partition, 0)
                assert len(read(member, 120)) == 120
            broker.stop()
            shutil.rmtree(broker.folder / "data")
            shutil.copytree(tmp_path / "backup", broker.folder / "data")
            broker.start()
            produce(config, "t", {0: [b"new"] * 60})
            assert read_all(alone, 130) == list(range(70, 130))
        with (
            klamm.Consumer(strict, topics=["t"]) as member,
            pytest.raises(LogTruncatedError, match="the records 70 to 119 are lost"),
        ):
            member.poll(60.0)
        with klamm.Consumer(grouped, topics=["t"]) as member:
            assert read_all(member, 130) == list(range(70, 130))


def exact_epochs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consumers that know the leader epoch of the position alone."""

    def known(self: Positions, partition: TopicPartition, offset: int) -> int:
        state = self.states.get(partition)
        return state.position_epoch if state is not None and state.position == offset else -1

    monkeypatch.setattr(Positions, "_epoch_before", known)


@guarantee("A1", "an offset from within what was read is stored with a leader epoch", plant=exact_epochs_alone)
@pytest.mark.parametrize(
    ("protocol", "when"),
    [
        ("registry", "while it reads"),
        ("classic", "while it reads"),
        ("by hand", "while it reads"),
        ("by hand", "after a seek"),
        ("by hand", "of what is cut by then"),
    ],
)
def test_commits_within_a_log_from_an_older_backup(
    tmp_path: Path, codecs: CodecTable, protocol: str, when: str
) -> None:
    """70 records are in the backup, 120 were read and 111 committed; 60 others take the place of the 50 lost."""
    partition = TopicPartition("t", 0)
    with running_broker(tmp_path, topics={"t": {"partitions": 1}}) as broker:
        chosen = {} if protocol == "by hand" else {"group_protocol": protocol}
        config = client_config(broker, group_id="g", enable_auto_commit=False, **chosen)
        produce(config, "t", {0: [b"kept"] * 70})
        with ClusterClient(broker.bootstrap, codecs=codecs) as client:
            client.coordinator("g")  # the topic of groups is in the backup
        broker.stop()
        shutil.copytree(broker.folder / "data", tmp_path / "backup")
        broker.start()
        produce(config, "t", {0: [b"lost"] * 50})

        def restore() -> None:
            broker.stop()
            shutil.rmtree(broker.folder / "data")
            shutil.copytree(tmp_path / "backup", broker.folder / "data")
            broker.start()
            produce(config, "t", {0: [b"new"] * 60})

        with open_as(config, partition, protocol) as consumer:
            assert len(read(consumer, 120)) == 120
            if when == "after a seek":
                consumer.seek(partition, 50)
            if when == "of what is cut by then":
                restore()
                eventually(lambda: position(consumer, partition) == 70, "the cut is noticed")
            consumer.commit({partition: 111})
            assert consumer.committed([partition])[partition].leader_epoch >= 0
        if when != "of what is cut by then":
            restore()
        with open_as(config, partition, protocol) as consumer:
            assert read_all(consumer, 130) == list(range(70, 130))


def open_as(config: dict[str, Any], partition: TopicPartition, protocol: str) -> klamm.Consumer:
    if protocol != "by hand":
        return klamm.Consumer(config, topics=[partition.topic])
    consumer = klamm.Consumer(config)
    consumer.assign([partition])
    return consumer


def position(consumer: klamm.Consumer, partition: TopicPartition) -> int | None:
    """Nothing is handed out."""
    return consumer._positions.states[partition].position


def test_an_offset_that_nothing_was_read_up_to_has_no_epoch(broker: RunningBroker, topic: str) -> None:
    config = client_config(broker, group_id=f"group-{topic}", enable_auto_commit=False)
    partition = TopicPartition(topic, 0)
    produce(config, topic, {0: [b"old"] * 10})
    with klamm.Consumer(config) as consumer:
        consumer.assign([partition])
        assert len(read(consumer, 10)) == 10
        consumer.commit({partition: 11})
        assert consumer.committed([partition])[partition].leader_epoch == -1


def buffers_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consumers that go on with what they fetched from the leader before."""
    no_last_epochs(monkeypatch)
    unchanged = Fetcher._unchanged

    def keeping(self: Fetcher, one: fetcher._Check, topic: TopicView | None) -> None:
        one.state.leader_epoch = fetcher._leader_epoch(topic, one.partition)
        unchanged(self, one, topic)

    monkeypatch.setattr(Fetcher, "_unchanged", keeping)


@guarantee("A1", "a consumer whose log lost its end hands out nothing that was buffered of it", plant=buffers_kept)
def test_buffers_over_a_log_from_an_older_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The position is in the backup, and behind it 20 records are buffered that are not; 60 others take their place."""
    partition, large = TopicPartition("t", 0), b"x" * 10_000
    with running_broker(tmp_path, topics={"t": {"partitions": 1}}) as broker:
        config = client_config(broker, max_partition_fetch_bytes=5_000)
        config["producer"]["linger.ms"] = 60_000  # one batch for each flush
        produce(config, "t", {0: [large]})
        produce(config, "t", {0: [b"kept"] * 20})
        broker.stop()
        shutil.copytree(broker.folder / "data", tmp_path / "backup")
        broker.start()
        produce(config, "t", {0: [b"lost"] * 20})
        produce(config, "t", {0: [large]})
        fetches = Fetches(monkeypatch)
        with klamm.Consumer(config) as consumer:
            consumer.assign([partition])
            assert len(consumer.poll(60, 1)) == 1
            eventually(lambda: fetches.answered == [0, 1], "the small batches are buffered, and there is no more room")
            broker.stop()
            shutil.rmtree(broker.folder / "data")
            shutil.copytree(tmp_path / "backup", broker.folder / "data")
            assert [r.offset for r in consumer.poll(60, 1)] == [1]
            eventually(lambda: fetches.failed, "there is room, and no broker")
            consumer.pause([partition])
            broker.start()
            produce(config, "t", {0: [b"new"] * 60})
            consumer.resume([partition])
            eventually(lambda: len(fetches.answered) > 2, "a fetch is answered")
            values = [r.value for r in read(consumer, 79)]
            assert values == [b"kept"] * 19 + [b"new"] * 60
