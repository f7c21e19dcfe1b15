"""A broker whose ZooKeeper has gone: what is led goes on being served, changes fail clearly, and all is well after."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path

from klamm.core.cluster.tree import paths
from klamm.core.cluster.tree.nodes import ClusterIdNode, MetadataVersionNode
from klamm.core.config.settings import load_settings
from klamm.core.errors import ErrorCode
from klamm.plugins.coordination.zookeeper.server import ZooKeeperServer
from klammtest.broker import running_broker
from klammtest.ports import free_port
from klammtest.requests import batch, create_topic, fetch, metadata, produce, wait_until_all_are_known
from klammtest.waiting import eventually
from klammtest.wire import WireClient

SESSION_MS = 2000
LONG_SESSION_MS = 120_000
"""Also the time that a call waits for ZooKeeper."""


def test_partitions_are_served_while_zookeeper_is_away(tmp_path: Path) -> None:
    with ZooKeeperServer(tmp_path / "zookeeper", free_port()) as server:
        tree = {
            "plugin": "zookeeper",
            "zookeeper.connect": f"{server.connect}/klamm",
            "zookeeper.session.timeout.ms": SESSION_MS,
        }
        topics = {"t": {"partitions": 1}}
        with running_broker(tmp_path / "broker", coordination=tree, topics=topics) as broker:
            with WireClient(broker.bootstrap) as wire:
                eventually(lambda: produce(wire, "t", batch(b"before")).base_offset == 0, "t is led")
                server.kill()
                time.sleep(SESSION_MS / 1000 * 1.5)  # the session is over, and the broker cannot know it
                assert produce(wire, "t", batch(b"meanwhile")).base_offset == 1
                assert fetch(wire, "t", 0).high_watermark == 2
                assert metadata(wire, None).topics[0].partitions[0].leader_id == 0
                refused = create_topic(wire, "u")
                assert refused.error_code is ErrorCode.request_timed_out
                assert "is unavailable" in refused.error_message
                server.start()
                # One whose answer was lost while the client reconnects may have been made.
                made = (ErrorCode.none, ErrorCode.topic_already_exists)
                eventually(lambda: create_topic(wire, "u").error_code in made, "topics are made again")
                # A session that is over, too, once the server is back: the broker registers again, and leads again.
                for topic, offset in (("u", 0), ("t", 2)):
                    eventually(lambda: produce(wire, topic, batch(b"x")).base_offset == offset, f"{topic} is led again")  # noqa: B023
            assert "Traceback" not in broker.log()


def test_a_stop_while_zookeeper_is_away_says_so_and_does_not_wait_for_it(tmp_path: Path) -> None:
    """It waited for the time of each call: to hand over, to resign, and for what its threads had asked."""
    with ZooKeeperServer(tmp_path / "zookeeper", free_port()) as server, ExitStack() as stack:
        tree = {
            "plugin": "zookeeper",
            "zookeeper.connect": f"{server.connect}/klamm",
            "zookeeper.session.timeout.ms": LONG_SESSION_MS,
        }
        brokers = [
            stack.enter_context(running_broker(tmp_path / str(number), coordination=tree, broker={"broker.id": number}))
            for number in range(2)
        ]
        wait_until_all_are_known([broker.bootstrap for broker in brokers])
        server.kill()
        stopped = brokers[0]
        eventually(lambda: ": suspended" in stopped.log(), "it notices that ZooKeeper is gone")
        os.kill(stopped.pid, signal.SIGTERM)
        assert stopped.died(LONG_SESSION_MS / 1000 / 2)
        assert stopped.stop() == 0
        said = stopped.log()
        assert "the coordination does not answer: waiting up to 2 s for it, to move partitions to other brokers" in said
        assert "this broker stops without moving its partitions to others: the coordination does not answer" in said
        assert "broker 0 does not unregister, since the coordination does not answer" in said
        assert "Traceback" not in said
        assert (stopped.log_dir / ".kafka_cleanshutdown").exists()


def test_a_coordination_that_lost_its_data_deletes_nothing(tmp_path: Path) -> None:
    """Another cluster's tree, without our topics, is not the deletion of our topics."""
    topics = {"t": {"partitions": 1, "config": {"file.delete.delay.ms": 0}}}
    with running_broker(tmp_path, topics=topics) as broker, WireClient(broker.bootstrap) as wire:
        produce(wire, "t", batch(b"before"))
        tree = load_settings(broker.config_path).make_coordination()
        tree.start()
        try:
            tree.set(paths.CLUSTER_ID, ClusterIdNode(id="another").encode())
            tree.delete(paths.topic("t"), recursive=True)
            tree.set(paths.METADATA_VERSION, MetadataVersionNode(topics=("t",)).encode())
            eventually(lambda: "they stay as they are" in broker.log(), "the other cluster is noticed")
        finally:
            tree.close()
        assert (broker.log_dir / "t-0").is_dir()
        assert fetch(wire, "t", 0).high_watermark == 1
        assert produce(wire, "t", batch(b"after")).base_offset == 1
        assert "Traceback" not in broker.log()
