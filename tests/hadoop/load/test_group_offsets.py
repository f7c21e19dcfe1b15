"""After a load its offsets are those of the sink's consumer group; a commit that failed is made by the next run."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pyspark.sql import SparkSession

from klamm.core.cli.admin.groups import describe
from klamm.core.client.cluster_client import ClusterClient
from klamm.core.errors import BrokerError, ErrorCode
from klammtest.brokers.served import T0, Served, served


def committed(at: Served, group: str = "sink-lake") -> tuple[int, str] | None:
    found = at.client.fetch_offsets(group).get(T0)
    return None if found is None else (found.offset, found.metadata)


def test_lag_tools_see_a_load(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(tmp_path) as at:
        at.produce(range(30))
        at.load()
        assert committed(at) == (30, "load=1")
        at.produce(range(30, 40))
        at.load(**{"group.id": ""})
        assert committed(at) == (30, "load=1")
        coordination = {"plugin": "embedded", "path": f"{tmp_path}/broker/coordination.db"}
        config = tmp_path / "klamm.yaml"
        config.write_text(yaml.safe_dump({"coordination": coordination}))
        describe("sink-lake", config, at.bootstrap)
    assert capsys.readouterr().out.endswith("total lag 10\n")


def test_a_commit_that_failed_is_made_by_the_next_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise BrokerError(ErrorCode.unknown_member_id, "the group has members")

    with served(tmp_path) as at:
        at.produce(range(30))
        with monkeypatch.context() as patch:
            patch.setattr(ClusterClient, "commit_offsets", refused)
            assert " load=1 rows=30 " in at.load(**{"group.id": "batch"})
        assert at.warnings.read_text() == (
            "klamm: t: the offsets of load 1 are not committed to the group batch "
            "(UNKNOWN_MEMBER_ID: the group has members); the next run commits them\n"
        )
        assert committed(at, "batch") is None
        assert at.load(**{"group.id": "batch"}) == "load topic=t rows=0: nothing new"
        assert committed(at, "batch") == (30, "load=1")
