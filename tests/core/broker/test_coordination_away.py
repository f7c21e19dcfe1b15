"""A broker whose ZooKeeper has gone: what is led goes on being served, changes fail clearly, and all is well after."""

from __future__ import annotations

import time
from pathlib import Path

from klamm.core.cluster.tree import paths
from klamm.core.cluster.tree.nodes import ClusterIdNode, MetadataVersionNode
from klamm.core.config.settings import load_settings
from klamm.core.errors import ErrorCode
from klamm.plugins.coordination.zookeeper_server import ZooKeeperServer
from klammtest.broker import running_broker
from klammtest.ports import free_port
from klammtest.requests import batch, create_topic, fetch, metadata, produce
from klammtest.waiting import eventually
from klammtest.wire import WireClient

SESSION_MS = 2000


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
                produce(wire, "t", batch(b"before"))
                server.kill()
                time.sleep(SESSION_MS / 1000 * 1.5)  # the session is over, and the broker cannot know it
                assert produce(wire, "t", batch(b"meanwhile")).base_offset == 1
                assert fetch(wire, "t", 0).high_watermark == 2
                assert metadata(wire, None).topics[0].partitions[0].leader_id == 0
                refused = create_topic(wire, "u")
                assert refused.error_code is ErrorCode.request_timed_out
                assert "is unavailable" in refused.error_message
                server.start()
                eventually(lambda: create_topic(wire, "u").error_code is ErrorCode.none, "topics are made again")
                assert produce(wire, "u", batch(b"first")).base_offset == 0
                assert produce(wire, "t", batch(b"after")).base_offset == 2
            assert "Traceback" not in broker.log()


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
