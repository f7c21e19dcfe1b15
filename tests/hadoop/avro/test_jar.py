"""A load with `format: avro` has spark-avro on its session, Klamm's or the user's."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from klamm.core.errors import ConfigError
from klamm.hadoop import read_lake
from klamm.hadoop.avro import jar
from klamm.hadoop.avro.jar import JARS, with_avro
from klammtest.brokers.served import served


def test_spark_avro_is_added_where_the_user_names_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "spark-avro_2.13-4.1.1.jar"
    monkeypatch.setattr(jar, "find_avro_jar", lambda: str(mine))
    assert with_avro({"spark.jars": "a.jar"}, "orc") == {"spark.jars": "a.jar"}
    assert with_avro({}, "avro") == {"spark.jars": f"{mine}"}
    assert with_avro({"spark.jars": "a.jar"}, "avro") == {"spark.jars": f"a.jar,{mine}"}
    for key, own in (("spark.jars", "b/spark-avro_2.13.jar"), ("spark.jars.packages", "o.a.s:spark-avro_2.13:4")):
        assert with_avro({key: own}, "avro") == {key: own}


def test_a_machine_without_maven_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(jar.VARIABLE, str(tmp_path / "none"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"spark-avro's jars are missing, and Maven.*KLAMM_AVRO_JARS"):
        with_avro({}, "avro")


@pytest.mark.skipif(not JARS.have(), reason="python -m klamm.hadoop.avro.jar brings spark-avro")
def test_a_topic_is_loaded_as_avro(spark: SparkSession, tmp_path: Path) -> None:
    with served(tmp_path) as at:
        at.produce(range(20))
        assert " load=1 rows=20 files=1 " in at.load(format="avro")
    rows = read_lake(spark, f"{tmp_path}/lake", "t").orderBy("_offset").collect()
    assert [row["value"] for row in rows] == [b"v%d" % n for n in range(20)]
