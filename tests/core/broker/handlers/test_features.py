"""UpdateFeatures, and what ApiVersions says of features (KIP-584), over every version; who may join the cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from klamm.core.cluster.feature_levels import REPLICATION
from klamm.core.cluster.tree import paths
from klamm.core.cluster.tree.nodes import FeaturesNode
from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.produce.conditional import FEATURE as CONDITIONAL_APPEND
from klammtest.apis import SERVED
from klammtest.broker import KLAMM
from klammtest.replicated.cluster import BrokerCluster, running_cluster
from klammtest.requests import create_topic
from klammtest.waiting import eventually
from klammtest.wire import WireClient, part

API = ApiKey.UPDATE_FEATURES
VERSIONS = range(SERVED[API][0], SERVED[API][1] + 1)
UPGRADE, SAFE, UNSAFE = 1, 2, 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    folder = tmp_path_factory.mktemp("features")
    tree = {"plugin": "embedded", "path": str(folder / "tree.db"), "session.timeout.ms": 20_000}
    with running_cluster(folder, tree, size=2) as running:
        eventually(lambda: len(running.registered()) == 2, "both are registered")
        yield running


@pytest.fixture
def wire(cluster: BrokerCluster) -> Iterator[WireClient]:
    with WireClient(cluster.brokers[cluster.controller()].bootstrap) as wire:
        yield wire


def update(
    wire: WireClient, level: int, kind: int = UPGRADE, version: int = 2, name: str = REPLICATION, **more: Any
) -> tuple[ErrorCode, str]:
    asked = part(
        API, version, "FeatureUpdateKey",
        feature=name, max_version_level=level, allow_downgrade=kind != UPGRADE, upgrade_type=kind,
    )  # fmt: skip
    answer = wire.call(API, version, timeout=timedelta(seconds=20), feature_updates=(asked,), **more)
    if version <= 1:
        (result,) = answer.results
        assert (result.feature, result.error_code) == (name, answer.error_code)
        assert result.error_message == answer.error_message
    return answer.error_code, answer.error_message or ""


def features(wire: WireClient, version: int = 4) -> Any:
    return wire.call(ApiKey.API_VERSIONS, version, client_software_name="test", client_software_version="1")


def level(wire: WireClient) -> int:
    found = {each.name: each.max_version_level for each in features(wire).finalized_features}
    return int(found.get(REPLICATION, 0))


def test_a_new_cluster_has_the_newest_level(wire: WireClient) -> None:
    answer = features(wire)
    (supported, conditional), (finalized,) = answer.supported_features, answer.finalized_features
    assert (conditional.name, conditional.min_version, conditional.max_version) == (CONDITIONAL_APPEND, 1, 1)
    assert (supported.name, supported.min_version, supported.max_version) == (REPLICATION, 0, 1)
    assert (finalized.name, finalized.min_version_level, finalized.max_version_level) == (REPLICATION, 1, 1)
    assert answer.finalized_features_epoch > 0
    before = features(wire, 3)
    assert [each.name for each in before.supported_features] == [CONDITIONAL_APPEND], (
        "clients before version 4 refuse a range from 0 (KIP-1022)"
    )
    assert before.finalized_features[0].max_version_level == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_a_downgrade_and_an_upgrade(wire: WireClient, cluster: BrokerCluster, version: int) -> None:
    before = features(wire).finalized_features_epoch
    assert update(wire, 0, SAFE, version) == (ErrorCode.none, "")
    eventually(lambda: level(wire) == 0, "level 0")
    assert features(wire).finalized_features_epoch > before
    answer = create_topic(wire, "two", replication_factor=2)
    assert answer.error_code is ErrorCode.invalid_replication_factor
    assert "the feature klamm.replication is at level 0 in this cluster" in answer.error_message
    assert update(wire, 1, UPGRADE, version) == (ErrorCode.none, "")
    assert update(wire, 1, UPGRADE, version) == (ErrorCode.none, ""), "it is there already"
    eventually(lambda: level(wire) == 1, "level 1")


def test_what_is_refused(wire: WireClient, cluster: BrokerCluster) -> None:
    def refused(*asked: Any, **more: Any) -> str:
        code, text = update(wire, *asked, **more)
        assert code is ErrorCode.invalid_update_version
        return text

    assert refused(2).endswith("supports 0 to 1")
    assert refused(-1).endswith("a level is 0 or more")
    assert "there is no such feature" in refused(1, name="metadata.version")
    assert "there is no upgrade type 7" in refused(0, 7)
    assert "a lower level needs the upgrade type of a safe downgrade" in refused(0, UPGRADE)
    assert "unsafe downgrades, which lose records, are not supported" in refused(0, UNSAFE)
    assert create_topic(wire, "copied", replication_factor=2).error_code is ErrorCode.none
    assert "1 partition with several replicas (copied-0)" in refused(0, SAFE, version=1, validate_only=True)
    assert level(wire) == 1
    wire.call(ApiKey.DELETE_TOPICS, 4, topic_names=("copied",), timeout=timedelta(seconds=20))
    assert update(wire, 0, SAFE, 1, validate_only=True) == (ErrorCode.none, "")
    assert level(wire) == 1, "it was to be validated only"
    empty = wire.call(API, 2, timeout=timedelta(seconds=20), feature_updates=(), validate_only=False)
    assert (empty.error_code, empty.error_message) == (ErrorCode.invalid_request, "the request names no feature")
    other = next(number for number in cluster.ids if number != cluster.controller())
    with WireClient(cluster.brokers[other].bootstrap) as elsewhere:
        assert update(elsewhere, 1)[0] is ErrorCode.not_controller


def test_the_command_shows_them(cluster: BrokerCluster) -> None:
    asked = [KLAMM, "cluster", "status", "--bootstrap", cluster.bootstrap]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=180, cwd=cluster.folder, check=False)
    assert done.stdout.splitlines()[-1] == "features: klamm.replication 1", done.stderr


def test_a_broker_that_does_not_support_a_level_does_not_register(tmp_path: Path) -> None:
    tree = {"plugin": "embedded", "path": str(tmp_path / "tree.db")}
    with running_cluster(tmp_path, tree, size=1) as cluster:
        cluster.stop()
        cluster.tree.set(paths.FEATURES, FeaturesNode(features={REPLICATION: 1, "klamm.later": 3}).encode())
        with pytest.raises(RuntimeError) as refused:
            cluster.brokers[0].start()
        said = str(refused.value)
        assert (
            "the cluster uses level 3 of the feature klamm.later, but broker 0 supports 0 to 0: run a release that "
            "supports it" in said
        )
        assert "Traceback" not in said
