"""A lake read without Spark; `generations/test_generations.py` compares it with `read_lake` on a lake of Spark's."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import orc, parquet

from klamm.core.errors import ConfigError, SchemaError
from klamm.hadoop.lake.manifest import LakeOrigin, Manifest
from klamm.hadoop.publishing.interface import LakeError
from klamm.lake import dataset

MILLIS: Any = {"type": "long", "logicalType": "timestamp-millis"}
DATE: Any = {"type": "int", "logicalType": "date"}
UTC_MICROS = pa.timestamp("us", tz="UTC")


def record(*fields: dict[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [*fields]}


def field(name: str, kind: Any, *aliases: str) -> dict[str, Any]:
    return {"name": name, "type": kind, "aliases": [*aliases]}


def put(root: Path, number: int, schema: Any, table: pa.Table, name: str = "dt=2020-01-01/part-0.parquet") -> Path:
    """Publishes a load by hand, with one file."""
    load = root / "t" / f"load={number:06d}"
    path = load / name
    path.parent.mkdir(parents=True)
    (orc.write_table if name.endswith(".orc") else parquet.write_table)(table, path)
    text = None if schema is None else json.dumps(schema)
    made = Manifest(
        topic="t", load=number, job_id=str(number), created_ms=number * 1000, rows=table.num_rows, files=1,
        partitions={}, avro_schema=text, lake=LakeOrigin(id="one", directory=str(root / "t")),
    )  # fmt: skip
    (load / "_offsets.json").write_bytes(made.to_bytes())
    return path


def inner(alias: str, name: str) -> list[dict[str, Any]]:
    """A record, an array and a map of records, whose field has this name and alias."""

    def of(kind: str) -> dict[str, Any]:
        return record(field(name, "int", alias), name=kind)

    return [
        field("in", ["null", of("In")]),
        field("list", {"type": "array", "items": of("El")}),
        field("map", {"type": "map", "values": of("Va")}),
    ]


def nested(name: str) -> dict[str, pa.Array]:
    one = pa.struct([(name, pa.int32())])
    return {
        "in": pa.array([{name: 1}, None], one),
        "list": pa.array([[{name: 2}, {name: 3}], []], pa.list_(one)),
        "map": pa.array([[("k", {name: 4})], None], pa.map_(pa.string(), one)),
    }


def test_columns_are_one_whatever_they_were_called(tmp_path: Path) -> None:
    first = record(field("a", "int"), *inner("-", "x"), field("at", "long"), field("day", "int"), field("id", "int"))
    second = record(
        field("b", "long", "a"), *inner("x", "y"), field("at", MILLIS), field("day", DATE), field("ID", "int"),
        field("new", "string"),
    )  # fmt: skip
    third = record(
        field("c", "double", "b"), *inner("y", "z"), field("at", MILLIS), field("day", DATE), field("ID", "int"),
        field("new", "string"),
    )  # fmt: skip
    at, day = pa.array([-1, 1500], pa.int64()), pa.array([1, None], pa.int32())
    later = {"at": pa.array([2_000_000, None], UTC_MICROS), "day": day.cast(pa.date32())}
    ids, new = pa.array([1, 2], pa.int32()), pa.array(["n", None])
    put(
        tmp_path,
        1,
        first,
        pa.table({"a": pa.array([7, 8], pa.int32()), **nested("x"), "at": at, "day": day, "id": ids}),
    )
    put(tmp_path, 2, second, pa.table({"b": pa.array([9, None]), **nested("y"), **later, "ID": ids, "new": new}))
    put(tmp_path, 3, third, pa.table({"c": pa.array([0.5, 1.5]), **nested("z"), **later, "ID": ids, "new": new}))
    lake = dataset(str(tmp_path), "t")
    table = lake.to_table()
    assert table.schema == lake.schema
    assert table.column_names == ["c", "in", "list", "map", "at", "day", "ID", "new", "load", "dt"]
    assert table["c"].to_pylist() == [7.0, 8.0, 9.0, None, 0.5, 1.5]
    assert table["in"].to_pylist() == [{"z": 1}, None] * 3
    assert table["list"].to_pylist() == [[{"z": 2}, {"z": 3}], []] * 3
    assert table["map"].to_pylist() == [[("k", {"z": 4})], None] * 3
    assert table["at"].cast(pa.int64()).to_pylist() == [-1000, 1_500_000] + [2_000_000, None] * 2
    assert [str(each) for each in table["day"].to_pylist()] == ["1970-01-02", "None"] * 3
    assert table["ID"].to_pylist() == [1, 2] * 3
    assert table["new"].to_pylist() == [None, None] + ["n", None] * 2
    assert table["load"].to_pylist() == [1, 1, 2, 2, 3, 3]
    assert table["dt"].to_pylist() == ["2020-01-01"] * 6
    assert pa.table(lake) == table
    assert lake.to_pandas(["c", "load"]).to_dict("list")["load"] == [1, 1, 2, 2, 3, 3]
    assert lake.to_table(["dt", "c"]) == table.select(["dt", "c"])
    assert dataset(str(tmp_path), "t", as_of=1).schema.names[:4] == ["a", "in", "list", "map"]
    assert dataset(str(tmp_path), "t", as_of=datetime.fromtimestamp(2, UTC)).to_table().num_rows == 4


def test_loads_of_other_formats_and_directories(tmp_path: Path) -> None:
    put(tmp_path, 1, None, pa.table({"value": [b"a"]}), "dt=2020-01-01/hr=03/part-0.parquet")
    put(tmp_path, 2, None, pa.table({"value": [b"b"]}), "dt=__invalid__/hr=__HIVE_DEFAULT_PARTITION__/part-0.orc")
    table = dataset(str(tmp_path), "t").to_table()
    assert table.to_pylist() == [
        {"value": b"a", "load": 1, "dt": "2020-01-01", "hr": "03"},
        {"value": b"b", "load": 2, "dt": "__invalid__", "hr": None},
    ]


def test_types_that_no_column_holds_are_one_line(tmp_path: Path) -> None:
    put(tmp_path, 1, None, pa.table({"a": pa.array([1], pa.int32())}))
    put(tmp_path, 2, None, pa.table({"a": ["x"]}))
    with pytest.raises(SchemaError, match="column a is string in newer loads and int32 in older ones; no"):
        dataset(str(tmp_path), "t")


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    path = put(tmp_path, 1, None, pa.table({"a": [1]}))
    lake = dataset(str(tmp_path), "t")
    with pytest.raises(ConfigError, match=r"there is no column 'b' \(there are: a, load, dt\)"):
        lake.to_reader(["b"])
    with pytest.raises(ConfigError, match="no load is published as of 0"):
        dataset(str(tmp_path), "t", as_of=0)
    path.write_bytes(path.read_bytes()[:-4] + b"zzzz")
    with pytest.raises(LakeError, match=r"part-0.parquet cannot be read: "):
        lake.to_table()
    path.rename(path.with_suffix(".avro"))
    with pytest.raises(ConfigError, match=r"part-0.avro: avro files are read by klamm.hadoop.read_lake, with Spark"):
        dataset(str(tmp_path), "t")
