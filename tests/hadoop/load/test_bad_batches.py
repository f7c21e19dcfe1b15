"""A batch with a good CRC that cannot be opened: a load ends with its place, or sets it aside and goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from klamm.core.errors import ConfigError
from klamm.hadoop.load import topics
from klamm.hadoop.options import ReadOptions
from klamm.hadoop.session import SparkFailedError
from klammtest.brokers.served import T0, Served, served
from klammtest.guarantees import guarantee
from klammtest.native.batches import unopenable

BAD = unopenable([(1_000_000, None, b"lost", ())] * 4)


def fill(at: Served) -> None:
    """Offsets 0 to 10, a batch of 4 that cannot be opened, and 14 to 24."""
    at.produce(range(10))
    at.client.produce({T0: BAD})
    at.produce(range(10, 20))


def values_only(patch: pytest.MonkeyPatch) -> None:
    """As before: quarantine concerns values, and a task ends at such a batch."""

    def options(bootstrap: str, plugins: tuple[str, ...], fail_on_data_loss: bool, quarantine: bool) -> ReadOptions:
        return ReadOptions(bootstrap, plugins, fail_on_data_loss, quarantine=False)

    patch.setattr(topics, "ReadOptions", options)


@guarantee("D13", "a load sets a batch that cannot be opened aside and goes on", plant=values_only)
def test_a_batch_that_cannot_be_opened_is_set_aside(spark: SparkSession, tmp_path: Path) -> None:
    with served(tmp_path) as at:
        fill(at)
        assert " rows=20 " in at.load(**{"on.bad.record": "quarantine", "max.offsets.per.task": 12})
        lake = f"{tmp_path}/lake/t"
        rows = spark.read.parquet(lake).orderBy("_offset").collect()
        assert [row["value"] for row in rows] == [b"v%d" % n for n in range(20)]
        bad = spark.read.parquet(f"{lake}/load=000001/_bad").orderBy("_offset").collect()
        # The batch lies across two tasks: each has its part of the offsets, and the bytes of all.
        assert [(row["_offset"], row["_end_offset"]) for row in bad] == [(10, 12), (12, 14)]
        assert {row["_value"][12:] for row in bad} == {b"".join((b"\0\0\0\0", BAD[16:]))}
        assert "gzip" in bad[0]["_error"]
        unopened = at.manifest(1)["unopened"]
        assert [(one["partition"], one["from"], one["to"]) for one in unopened] == [(0, 10, 12), (0, 12, 14)]
        assert at.warnings.read_text().count("klamm: t-0: the batch of the offsets 1") == 2
        assert [(r["from"], r["to"], sum(w[1] for w in r["windows"])) for r in at.audit(1)] == [(0, 24, 20)]


def test_a_batch_that_cannot_be_opened_ends_a_load_and_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with served(tmp_path) as at:
        fill(at)
        with pytest.raises(SparkFailedError, match=r"t-0 offset 10: .*the batch of the offsets 10 to 14") as caught:
            at.load()
        assert "\n" not in str(caught.value)
        with pytest.raises(ConfigError, match=r"sinks.lake.on.bad.record: a load accepts fail or quarantine"):
            at.load(**{"on.bad.record": "skip"})


def test_damage_is_not_set_aside(spark: SparkSession, tmp_path: Path) -> None:
    """Another copy of a batch whose CRC does not match may be good."""
    with served(tmp_path) as at:
        at.produce(range(10))
        (segment,) = (tmp_path / "broker" / "data" / "t-0").glob("*.log")
        data = bytearray(segment.read_bytes())
        data[-1] ^= 1
        segment.write_bytes(data)
        with pytest.raises(SparkFailedError, match="the CRC does not match"):
            at.load(**{"on.bad.record": "quarantine"})
