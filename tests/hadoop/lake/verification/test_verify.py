"""`klamm lake`: a lake as loads make it is intact, and each planted damage is found; on `file:` and on `hdfs:`."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml
from pyarrow import parquet
from pyspark.sql import SparkSession

from klamm.core.errors import ConfigError, KlammError
from klamm.core.interfaces.envelope import SchemaKey
from klamm.hadoop import read_lake
from klamm.hadoop.avro.jar import JARS
from klamm.hadoop.lake.cli import DAMAGED
from klamm.hadoop.lake.files import LakeFiles, lake_files
from klamm.hadoop.lake.layout import TopicLayout
from klamm.hadoop.lake.listing import loads_of
from klamm.hadoop.lake.verification.findings import Bounds, TopicProof
from klamm.hadoop.lake.verification.verify import topics_of, verify_topic
from klamm.hadoop.load.spark_writer import FileFormat
from klamm.hadoop.publishing.interface import LakeUnavailableError
from klamm.hadoop.publishing.local import LocalFiles
from klammtest.hadoop.lakes import SCHEMES, change_on_hdfs, files_below, put_on_hdfs
from klammtest.hadoop.lakes import klamm_lake as run
from klammtest.hadoop.load_jobs import DAY_MS, TOPIC, MemoryTopics, compactor, flight, job, payload

BOUNDS = Bounds(0, 253_402_300_799_000_000)


@pytest.fixture(scope="module")
def original(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four loads: plain ones, invalid timestamps, a tombstone, quarantined records and batches, lost offsets, none; a
    generation of the first three."""
    root = tmp_path_factory.mktemp("original")
    topics = MemoryTopics()
    topics.configure(quarantine=True)
    load = job(spark, topics, str(root), reset="earliest", target_size=1 << 20)
    for n in range(40):
        topics.add(n % 2, flight(n), ts_ms=n % 3 * DAY_MS + n)
    assert load.run(TOPIC) is not None
    topics.add(0, flight(40), ts_ms=None)
    topics.add(0, None, ts_ms=DAY_MS)
    topics.add(0, b"\0\0\0\0\1", ts_ms=DAY_MS)
    _add_unopened(topics, 1, length=5)
    topics.add(1, flight(41), ts_ms=DAY_MS)
    assert load.run(TOPIC) is not None
    topics.records = [r for r in topics.records if r["partition"] == 1]
    for n in range(6):
        topics.add(1, flight(50 + n), ts_ms=n * DAY_MS)
    topics.started[0] = 30
    assert load.run(TOPIC) is not None
    assert compactor(spark, str(root)).run(TOPIC) is not None
    topics.add(0, flight(60), ts_ms=0)
    topics.add(1, flight(61), ts_ms=0)
    assert load.run(TOPIC) is not None
    (root / TOPIC / "_audited").mkdir()
    for number in range(1, 5):
        (root / TOPIC / "_audited" / f"{number:06d}").touch()
    return root


def _add_unopened(topics: MemoryTopics, partition: int, length: int) -> None:
    """A batch of `length` offsets that cannot be opened, and an offset that the log gave to nothing after it."""
    start = topics.ends(TOPIC)[partition].latest
    topics.add(partition, b"\0bytes of it", ts_ms=DAY_MS)
    topics.records[-1] |= {"error": "it does not decompress", "endOffset": start + length}
    topics.add(partition, flight(0), ts_ms=DAY_MS)
    topics.records[-1]["offset"] = start + length + 1


@pytest.fixture(scope="module")
def on_hdfs(original: Path, request: pytest.FixtureRequest) -> tuple[str, str]:
    """The same lake on HDFS: its root and the address of WebHDFS."""
    server = request.getfixturevalue("hdfs_server")
    root = f"{server.uri}/lakes/{original.parent.name}-{original.name}"
    put_on_hdfs(server.web_url)(root, files_below(original))
    return root, server.web_url


@dataclass
class Damaged:
    """Applies what was done to a copy of the original, and takes it back."""

    original: Path
    request: pytest.FixtureRequest

    def __call__(self, scheme: str, copy: Path) -> tuple[LakeFiles, str]:
        if scheme == "file":
            return lake_files(str(copy)), str(copy)
        root, web_url = self.request.getfixturevalue("on_hdfs")
        before, after = files_below(self.original), files_below(copy)
        self._change(root, web_url, before, after)
        self.request.addfinalizer(lambda: self._change(root, web_url, after, before))
        return lake_files(root, web_url), root

    def _change(self, root: str, web_url: str, before: dict[str, bytes], after: dict[str, bytes]) -> None:
        changed = {name: data for name, data in after.items() if before.get(name) != data}
        change_on_hdfs(web_url, root, changed, [name for name in before if name not in after])


def part(topic: Path, load: int, folder: str, number: int = 0) -> Path:
    return sorted((topic / f"load={load:06d}" / folder).glob("part-*"))[number]


def remove(path: Path) -> None:
    path.unlink()
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    table = parquet.ParquetFile(path).read()
    remove(path)
    parquet.write_table(change(table), path)


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    said = json.loads(path.read_text())
    change(said)
    path.write_text(json.dumps(said))


def manifest(topic: Path, load: int) -> Path:
    return topic / f"load={load:06d}" / "_offsets.json"


def a_deleted_file(topic: Path) -> None:
    remove(part(topic, 1, "dt=1970-01-02"))


def a_deleted_file_whose_checksum_is_left(topic: Path) -> None:
    path = part(topic, 1, "dt=1970-01-02")
    path.with_name(f".{path.name}.crc").touch()
    path.unlink()


def a_truncated_file(topic: Path) -> None:
    path = part(topic, 1, "dt=1970-01-02")
    path.write_bytes(path.read_bytes()[:-20])


def an_emptied_file(topic: Path) -> None:
    part(topic, 1, "dt=1970-01-02").write_bytes(b"")


def a_flipped_byte(topic: Path) -> None:
    path = part(topic, 1, "dt=1970-01-02")
    data = bytearray(path.read_bytes())
    data[parquet.ParquetFile(path).metadata.row_group(0).column(0).data_page_offset + 60] ^= 1
    path.write_bytes(data)


def a_duplicated_file(topic: Path) -> None:
    path = part(topic, 1, "dt=1970-01-02")
    shutil.copy(path, path.with_name("part-00099-copy.parquet"))


def a_file_of_another_load(topic: Path) -> None:
    path = part(topic, 1, "dt=1970-01-01")
    shutil.copy(path, topic / "load=000003" / "dt=1970-01-01" / path.name)


def a_row_in_another_day(topic: Path) -> None:
    path = part(topic, 1, "dt=1970-01-02")
    path.rename(topic / "load=000001" / "dt=1970-01-03" / path.name)


def an_invalid_row_in_a_day(topic: Path) -> None:
    path = part(topic, 2, "dt=__invalid__")
    path.rename(topic / "load=000002" / "dt=1970-01-02" / path.name)


def a_valid_row_among_the_invalid(topic: Path) -> None:
    path = part(topic, 2, "dt=1970-01-02")
    path.rename(topic / "load=000002" / "dt=__invalid__" / path.name)


def a_row_that_is_gone(topic: Path) -> None:
    rewrite(part(topic, 1, "dt=1970-01-02"), lambda table: table.slice(1))


def a_row_in_place_of_another(topic: Path) -> None:
    rewrite(part(topic, 1, "dt=1970-01-02"), lambda table: pa.concat_tables([table.slice(1), table.slice(1, 1)]))


def an_edited_count_of_rows(topic: Path) -> None:
    edit(manifest(topic, 1), lambda said: said.update(rows=41))


def a_range_with_a_gap(topic: Path) -> None:
    edit(manifest(topic, 3), lambda said: said["partitions"]["1"].update({"from": 29}))


def a_range_that_ends_early(topic: Path) -> None:
    edit(manifest(topic, 1), lambda said: said["partitions"]["0"].update(to=19))


def a_missing_success(topic: Path) -> None:
    remove(topic / "load=000002" / "_SUCCESS")


def a_missing_manifest(topic: Path) -> None:
    remove(manifest(topic, 2))


def a_cut_manifest(topic: Path) -> None:
    manifest(topic, 2).write_bytes(manifest(topic, 2).read_bytes()[:-30])


def a_missing_audit(topic: Path) -> None:
    remove(topic / "load=000002" / "_audit.json")


def an_edited_audit(topic: Path) -> None:
    def change(said: dict[str, Any]) -> None:
        said["ranges"][0]["windows"][0][1] += 1

    edit(topic / "load=000001" / "_audit.json", change)


def an_overlapping_load(topic: Path) -> None:
    shutil.copytree(topic / "load=000001", topic / "load=000005")
    for name in ("_offsets.json", "_audit.json"):
        edit(topic / "load=000005" / name, lambda said: said.update(load=5))


def a_load_in_another_place(topic: Path) -> None:
    shutil.copytree(topic / "load=000004", topic / "load=000005")


def a_deleted_load(topic: Path) -> None:
    shutil.rmtree(topic / "load=000002")


def the_last_load_deleted(topic: Path) -> None:
    shutil.rmtree(topic / "load=000004")


def a_load_with_a_stray_number(topic: Path) -> None:
    (topic / "load=1795352374").mkdir()


def a_foreign_file(topic: Path) -> None:
    (topic / "load=000001" / "dt=1970-01-02" / "_notes.txt").write_text("?")


def a_foreign_directory(topic: Path) -> None:
    (topic / "load=3").mkdir()
    (topic / "load=3" / "a").write_text("?")


def quarantine_deleted(topic: Path) -> None:
    for path in (topic / "load=000002" / "_bad").glob("part-*"):
        remove(path)


def an_edited_count_of_quarantined(topic: Path) -> None:
    edit(manifest(topic, 2), lambda said: said.update(quarantined=0))


def a_quarantined_record_in_place_of_another(topic: Path) -> None:
    """Rows and offsets are as many: a record is a second time among the good ones, and not in `_bad`."""
    (path,) = (topic / "load=000002" / "_bad").glob("part-*")
    gone = parquet.ParquetFile(path).read().filter(pc.field("_end_offset").is_null())
    rewrite(path, lambda table: table.filter(pc.field("_end_offset").is_valid()))

    def with_one_more(table: pa.Table) -> pa.Table:
        row = table.slice(0, 1)
        for name in ("_partition", "_offset", "_timestamp", "_size"):
            row = set_column(row, name, lambda _, name=name: gone.column(name).to_pylist())  # type: ignore[misc]
        return pa.concat_tables([table, row])

    rewrite(part(topic, 2, "dt=1970-01-02"), with_one_more)


def another_topic_id(topic: Path) -> None:
    for name in ("_offsets.json", "_audit.json"):
        edit(topic / "load=000003" / name, lambda said: said.update(topic_id=str(UUID(int=2))))


def another_cluster(topic: Path) -> None:
    edit(manifest(topic, 3), lambda said: said.update(cluster_id="c2"))


def a_leader_epoch_that_goes_back(topic: Path) -> None:
    edit(manifest(topic, 1), lambda said: said["partitions"]["1"]["batch"].update(leader_epoch=7))


def a_manifest_of_another_job(topic: Path) -> None:
    edit(manifest(topic, 2), lambda said: said.update(job_id="another"))


def generation(topic: Path) -> Path:
    return topic / "_generations" / "generation=000001"


def merged_file(topic: Path) -> Path:
    return sorted((generation(topic) / "dt=1970-01-02").glob("part-*"))[0]


def rewrite_merged(topic: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """With the manifest that fits the new size: the rows alone are wrong."""
    path = merged_file(topic)
    rewrite(path, change)

    def resize(said: dict[str, Any]) -> None:
        (file,) = [file for file in said["files"] if file["name"] == f"dt=1970-01-02/{path.name}"]
        file["bytes"] = path.stat().st_size

    edit(generation(topic) / "_generation.json", resize)


def set_column(table: pa.Table, name: str, change: Callable[[list[Any]], list[Any]]) -> pa.Table:
    kind = table.schema.field(name)
    values = pa.array(change(table.column(name).to_pylist()), kind.type)
    return table.set_column(table.schema.get_field_index(name), kind, values)


def a_generation_that_lacks_a_load(topic: Path) -> None:
    edit(generation(topic) / "_generation.json", lambda said: said["loads"].pop(1))


def a_generation_of_another_load(topic: Path) -> None:
    edit(manifest(topic, 2), lambda said: said.update(created_ms=1))


def a_generation_without_its_load(topic: Path) -> None:
    for number in (3, 4):
        shutil.rmtree(topic / f"load=00000{number}")


def a_merged_file_that_is_gone(topic: Path) -> None:
    remove(merged_file(topic))


def a_merged_file_that_was_cut(topic: Path) -> None:
    merged_file(topic).write_bytes(merged_file(topic).read_bytes()[:-20])


def a_merged_file_that_no_manifest_names(topic: Path) -> None:
    shutil.copy(merged_file(topic), merged_file(topic).with_name("part-00099-copy.parquet"))


def a_merged_row_that_is_gone(topic: Path) -> None:
    rewrite_merged(topic, lambda table: table.slice(1))


def a_merged_row_in_place_of_another(topic: Path) -> None:
    rewrite_merged(topic, lambda table: pa.concat_tables([table.slice(0, 2), table.slice(1, 1), table.slice(3)]))


def a_merged_row_of_another_load(topic: Path) -> None:
    rewrite_merged(topic, lambda table: set_column(table, "load", lambda rows: [9, *rows[1:]]))


def a_merged_row_of_another_time(topic: Path) -> None:
    later = timedelta(milliseconds=1)
    rewrite_merged(topic, lambda table: set_column(table, "_timestamp", lambda rows: [rows[0] + later, *rows[1:]]))


def a_merged_row_in_another_day(topic: Path) -> None:
    merged_file(topic).rename(generation(topic) / "dt=1970-01-03" / merged_file(topic).name)


def a_wrong_count_of_merged_rows(topic: Path) -> None:
    edit(generation(topic) / "_generation.json", lambda said: said.update(rows=1))


def a_wrong_count_of_a_merged_load(topic: Path) -> None:
    edit(generation(topic) / "_generation.json", lambda said: said["loads"][0]["rows"].update({"0": 19}))


def a_generation_without_a_manifest(topic: Path) -> None:
    remove(generation(topic) / "_generation.json")


def a_cut_manifest_of_a_generation(topic: Path) -> None:
    path = generation(topic) / "_generation.json"
    path.write_bytes(path.read_bytes()[:-30])


def a_generation_in_another_place(topic: Path) -> None:
    shutil.copytree(generation(topic), topic / "_generations" / "generation=000002")


def a_foreign_file_beside_generations(topic: Path) -> None:
    (topic / "_generations" / "notes").write_text("?")


DAMAGES: dict[Callable[[Path], None], tuple[int | None, str, str]] = {
    a_deleted_file: (1, "files", r"\d+ data files, _offsets.json says \d+"),
    a_deleted_file_whose_checksum_is_left: (1, "files", "is missing: only its checksum"),
    a_truncated_file: (1, "files", "cannot be read"),
    an_emptied_file: (1, "files", "cannot be read"),
    a_flipped_byte: (1, "files", "cannot be read"),
    a_duplicated_file: (1, "rows", "more than once: 0:"),
    a_file_of_another_load: (3, "rows", "not of this load's offsets"),
    a_row_in_another_day: (1, "files", "timestamp of another directory"),
    an_invalid_row_in_a_day: (2, "files", "1 rows have a timestamp of another directory: 0:20"),
    a_valid_row_among_the_invalid: (2, "files", "timestamp of another directory"),
    a_row_that_is_gone: (1, "counts", "39 rows, _offsets.json says 40"),
    a_row_in_place_of_another: (1, "rows", "1 offsets occur more than once"),
    an_edited_count_of_rows: (1, "counts", "40 rows, _offsets.json says 41"),
    a_range_with_a_gap: (3, "ranges", "partition 1: gap: begins at offset 29, already loaded up to 28"),
    a_range_that_ends_early: (2, "ranges", "partition 0: gap: begins at offset 20, already loaded up to 19"),
    a_missing_success: (2, "files", "_SUCCESS is missing"),
    a_missing_manifest: (2, "files", "_offsets.json is missing"),
    a_cut_manifest: (2, "files", "not a manifest of a load"),
    a_missing_audit: (2, "files", "_audit.json is missing"),
    an_edited_audit: (1, "counts", "_audit.json says"),
    an_overlapping_load: (5, "ranges", "partition 0: overlap"),
    a_load_in_another_place: (5, "history", "_offsets.json is of load 4"),
    a_deleted_load: (2, "numbers", "load=000002 is missing"),
    the_last_load_deleted: (4, "numbers", "is missing, but its counts were sent to the audit"),
    a_load_with_a_stray_number: (5, "numbers", "load=000005 to .*load=1795352373 are missing"),
    a_foreign_file: (1, "files", "_notes.txt does not belong to the load"),
    a_foreign_directory: (None, "files", "load=3 does not belong to a load"),
    quarantine_deleted: (2, "counts", "0 unopened batches"),
    an_edited_count_of_quarantined: (2, "counts", "1 records in _bad, _offsets.json says 0 quarantined"),
    a_quarantined_record_in_place_of_another: (2, "counts", "0 records in _bad, _offsets.json says 1 quarantined"),
    another_topic_id: (3, "history", "another topic of the same name"),
    another_cluster: (3, "history", "from cluster 'c2'"),
    a_leader_epoch_that_goes_back: (2, "history", "leader epoch 0, before 7"),
    a_manifest_of_another_job: (2, "history", "of another"),
    a_generation_that_lacks_a_load: (None, "numbers", "generation=1 .*load 2 is missing in it"),
    a_generation_of_another_load: (None, "history", "generation=1 .*made from another load 2 than the present one"),
    a_generation_without_its_load: (None, "history", "generation=1 .*made from a load 3, which does not exist"),
    a_merged_file_that_is_gone: (None, "files", r"generation=1 .*parquet is missing"),
    a_merged_file_that_was_cut: (None, "files", r"generation=1 .*has \d+ bytes, _generation.json says \d+"),
    a_merged_file_that_no_manifest_names: (None, "files", "generation=1 .*copy.parquet is not in _generation.json"),
    a_merged_row_that_is_gone: (None, "rows", "generation=1 .*19 rows of load 1, partition 0, .* says 20"),
    a_merged_row_in_place_of_another: (
        None,
        "rows",
        "generation=1 .*the 20 rows of load 1, .* differ from those of",
    ),
    a_merged_row_of_another_load: (None, "rows", "generation=1 .*1 rows are of load 9, which is not one of its loads"),
    a_merged_row_of_another_time: (
        None,
        "rows",
        "generation=1 .*the 20 rows of load 1, .* differ from those of",
    ),
    a_merged_row_in_another_day: (None, "files", "generation=1 .*timestamp of another directory"),
    a_wrong_count_of_merged_rows: (None, "counts", r"generation=1 .*says 1 rows, and \d+ by load"),
    a_wrong_count_of_a_merged_load: (None, "rows", "generation=1 .*20 rows of load 1, partition 0, .* says 19"),
    a_generation_without_a_manifest: (None, "files", "generation=1 .*_generation.json is missing"),
    a_cut_manifest_of_a_generation: (None, "files", "generation=1 .*not a manifest of a generation"),
    a_generation_in_another_place: (None, "history", "generation=2 .*is of generation 1 of flights"),
    a_foreign_file_beside_generations: (None, "files", "_generations/notes does not belong to a generation"),
}

ON_HDFS = (
    a_deleted_file, a_truncated_file, a_duplicated_file, a_file_of_another_load, a_row_in_another_day,
    an_edited_count_of_rows, a_range_with_a_gap, a_missing_success, a_missing_manifest, an_overlapping_load,
    a_generation_that_lacks_a_load, a_merged_file_that_is_gone, a_merged_row_in_place_of_another,
)  # fmt: skip
"""Those that need another operation each."""


@pytest.fixture
def damaged(original: Path, request: pytest.FixtureRequest) -> Damaged:
    return Damaged(original, request)


def verified(place: tuple[LakeFiles, str], bounds: Bounds | None = BOUNDS) -> TopicProof:
    files, root = place
    assert topics_of(files, root) == [TOPIC]
    return verify_topic(files, TopicLayout(root, TOPIC), bounds)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_lake_as_loads_made_it_is_intact(damaged: Damaged, original: Path, scheme: str) -> None:
    for bounds in (BOUNDS, None):
        proof = verified(damaged(scheme, original), bounds)
        assert proof.findings == []
    assert proof.loads == 4
    assert [(gap.load, gap.partition, gap.start, gap.end) for gap in proof.gaps] == [(3, 0, 23, 30)]
    assert re.fullmatch(r"intact topic=flights loads=4 files=\d+ rows=53 generations=1 gaps=1 findings=0", proof.line())


@pytest.mark.parametrize(
    ("scheme", "damage"),
    [
        pytest.param(scheme, damage, id=f"{scheme}-{damage.__name__}")
        for scheme in SCHEMES
        for damage in (DAMAGES if scheme == "file" else ON_HDFS)
    ],
)
def test_a_planted_damage_is_found(
    damaged: Damaged, original: Path, tmp_path: Path, scheme: str, damage: Callable[[Path], None]
) -> None:
    copy = tmp_path / "lake"
    shutil.copytree(original, copy)
    damage(copy / TOPIC)
    load, kind, words = DAMAGES[damage]
    proof = verified(damaged(scheme, copy))
    lines = [finding.line() for finding in proof.findings]
    assert any(f.load == load and f.kind == kind and re.search(words, f.line()) for f in proof.findings), lines
    assert not any("\n" in line for line in lines)


def test_verify_says_by_its_exit_status_what_it_found(original: Path, tmp_path: Path) -> None:
    intact = run("verify", "--lake", str(original))
    assert (intact.exit_code, intact.exception) == (0, None)
    files = len(list((original / TOPIC).glob("load=*/**/part-*.parquet")))
    assert intact.stdout.splitlines() == [
        "gap topic=flights load=3 partition=0 offsets=23-30",
        f"intact topic=flights loads=4 files={files} rows=53 generations=1 gaps=1 findings=0",
    ]
    shutil.copytree(original, tmp_path / "lake")
    a_missing_success(tmp_path / "lake" / TOPIC)
    a_deleted_load(tmp_path / "lake" / TOPIC)
    damaged = run("verify", TOPIC, "--lake", f"{tmp_path}/lake")
    assert damaged.exit_code == DAMAGED
    assert damaged.stdout.splitlines()[0].startswith("damage topic=flights load=2 kind=numbers: ")
    as_json = run("verify", "--lake", f"{tmp_path}/lake", "--json")
    assert as_json.exit_code == DAMAGED
    said = json.loads(as_json.stdout)
    assert (said["state"], said["findings"][0]["kind"]) == ("damaged", "numbers")


def test_what_proves_nothing_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "one" / "trips" / "load=000001").mkdir(parents=True)
    for arguments, words, wrong in (
        (("verify", "--lake", f"{tmp_path}/empty"), "no topic of a lake found", False),
        (("ls", f"{tmp_path}/mistyped"), "no topic of a lake found", False),
        (("verify", "flights", "--lake", f"{tmp_path}/empty"), "no topic of a lake found", False),
        (("verify", "flights", "--lake", f"{tmp_path}/mistyped"), "no topic of a lake found", False),
        (("verify", "flights", "--lake", f"{tmp_path}/one"), "no topic 'flights' (there are: trips)", True),
        (("ls", "lake", "--config", f"{tmp_path}/none.yaml"), "none.yaml", True),
        (("show", "flights", "--lake", f"{tmp_path}/empty"), "no topic of a lake found", False),
        (("ls", "s3a://bucket/lake"), "cannot be read", True),
    ):
        result = run(*arguments)
        assert isinstance(result.exception, KlammError), result
        assert isinstance(result.exception, ConfigError) is wrong, result
        assert words in str(result.exception)
        assert "\n" not in str(result.exception)


def test_the_commands_import_no_spark() -> None:
    code = "import sys, klamm.hadoop.lake.cli, klamm.hadoop.lake.webhdfs; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_sink_names_its_lake_and_its_bounds(original: Path, tmp_path: Path) -> None:
    config = tmp_path / "klamm.yaml"
    lake = {"plugin": "hadoop", "topics": [TOPIC], "path": f"file://{original}"}
    config.write_text(yaml.safe_dump({"sinks": {"lake": lake}}))
    assert run("verify", "--config", str(config)).exit_code == 0
    config.write_text(yaml.safe_dump({"sinks": {"lake": {**lake, "timestamp.min": "1960-01-01"}}}))
    assert run("verify", "--lake", "lake", "--config", str(config)).exit_code == 0
    rows = [json.loads(line) for line in run("ls", "lake", "--config", str(config), "--json").stdout.splitlines()]
    assert [(r["topic"], r["loads"], r["rows"], r["offsets"]) for r in rows] == [(TOPIC, 4, 53, "0:0-31,1:0-35")]
    assert rows[0]["bytes"] > 0


def test_the_loads_of_a_topic_are_shown(original: Path) -> None:
    lines = run("show", TOPIC, "--lake", str(original)).stdout.splitlines()
    assert lines[0].split()[:6] == ["load", "created", "rows", "files", "bytes", "offsets"]
    assert [line.split()[0] for line in lines[1:]] == ["1", "2", "3", "4", "generation", "1"]
    assert "0:23-30" in lines[3]
    detail = run("show", TOPIC, "--load", "2", "--lake", str(original)).stdout
    assert "topic id: 00000000-0000-0000-0000-000000000001" in detail
    assert "_bad/part-" in detail
    as_json = json.loads(run("show", TOPIC, "--load", "2", "--lake", str(original), "--json").stdout)
    assert as_json["manifest"]["load"] == as_json["audit"]["load"] == 2
    missing = run("show", TOPIC, "--load", "9", "--lake", str(original))
    assert "there is no load 9 (there are: 1 to 4)" in str(missing.exception)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_lake_is_read_as_of_a_load_or_an_instant(
    spark: SparkSession, damaged: Damaged, original: Path, scheme: str
) -> None:
    files, root = damaged(scheme, original)
    web_url = None if scheme == "file" else damaged.request.getfixturevalue("on_hdfs")[1]

    def loads(as_of: int | datetime | None = None) -> set[int]:
        rows = read_lake(spark, root, TOPIC, as_of, webhdfs_url=web_url).select("load").distinct().collect()
        return {row[0] for row in rows}

    made = [load.created for load in loads_of(files, TopicLayout(root, TOPIC))]
    assert loads() == {1, 2, 3, 4}
    assert loads(2) == {1, 2}
    assert loads(made[2]) == {1, 2, 3}
    assert loads(made[2].replace(tzinfo=None)) == {1, 2, 3}
    for too_early in (0, made[0] - timedelta(seconds=1)):
        with pytest.raises(ConfigError, match="no load is published as of"):
            loads(too_early)


@pytest.mark.parametrize("as_of", [date(2013, 1, 1), "2013-01-01", True, 1.5])
def test_an_as_of_of_another_kind_is_refused(tmp_path: Path, as_of: Any) -> None:
    with pytest.raises(ConfigError, match="as_of: expected the number of a load or a datetime"):
        read_lake(None, str(tmp_path), TOPIC, as_of=as_of)  # type: ignore[arg-type]


NO_AVRO = pytest.mark.skipif(not JARS.have(), reason="python -m klamm.hadoop.avro.jar brings spark-avro")


@pytest.mark.parametrize("format_", ["parquet", "orc", pytest.param("avro", marks=NO_AVRO)])
def test_hours_and_other_formats_are_verified_too(spark: SparkSession, tmp_path: Path, format_: str) -> None:
    topics = MemoryTopics()
    topics.configure(partition_by=("dt", "hr"), quarantine=True)
    load = job(spark, topics, str(tmp_path), files=FileFormat(format_, ("dt", "hr"), 1 << 20))
    for n in range(20):
        topics.add(n % 2, flight(n), ts_ms=n % 3 * (DAY_MS + 3_600_000) + n)
    topics.add(0, flight(20), ts_ms=None)
    topics.add(0, b"\0\0\0\0\1", ts_ms=DAY_MS)
    assert load.run(TOPIC) is not None
    place = lake_files(str(tmp_path)), str(tmp_path)
    proof = verified(place)
    assert (proof.findings, proof.rows) == ([], 22)
    read = read_lake(spark, str(tmp_path), TOPIC).orderBy("_partition", "_offset").collect()
    assert [row["number"] for row in read] == [*range(0, 21, 2), *range(1, 20, 2)]
    first = read[1].asDict()
    assert (first["carrier"], first["_key"], str(first["dt"]), int(first["hr"])) == ("UA", None, "1970-01-03", 2)
    assert first["_timestamp"].timestamp() * 1000 == 2 * (DAY_MS + 3_600_000) + 2
    path = part(tmp_path / TOPIC, 1, "dt=1970-01-02/hr=01")
    (path.parent.parent / "hr=02").mkdir()
    path.rename(path.parent.parent / "hr=02" / path.name)
    assert any("timestamp of another directory" in finding.text for finding in verified(place).findings)


@pytest.mark.parametrize("format_", ["parquet", "orc", pytest.param("avro", marks=NO_AVRO)])
def test_a_load_of_invalid_records_alone_has_no_hour(spark: SparkSession, tmp_path: Path, format_: str) -> None:
    topics = MemoryTopics()
    topics.configure(partition_by=("dt", "hr"))
    topics.add(0, flight(1), ts_ms=None)
    load = job(spark, topics, str(tmp_path), files=FileFormat(format_, ("dt", "hr"), 1 << 20))
    assert load.run(TOPIC) is not None
    assert compactor(spark, str(tmp_path)).run(TOPIC) is not None
    for generation in (None, "latest"):
        (row,) = read_lake(spark, str(tmp_path), TOPIC, generation=generation).collect()  # type: ignore[arg-type]
        assert (row["number"], row["dt"], row["hr"]) == (1, "__invalid__", None)
    assert verified((lake_files(str(tmp_path)), str(tmp_path))).findings == []


def test_timestamps_that_only_orc_can_hold_are_no_damage(spark: SparkSession, tmp_path: Path) -> None:
    """A timestamp that means "for ever" is beyond pyarrow's nanoseconds."""
    until = {"name": "until", "type": {"type": "long", "logicalType": "timestamp-millis"}}
    schema = {"type": "record", "name": "Lease", "fields": [until]}
    plain = {"type": "record", "name": "Lease", "fields": [{"name": "until", "type": "long"}]}
    topics = MemoryTopics()
    topics.configure(reader=json.dumps(schema), writers={SchemaKey(schema_id=1): json.dumps(schema)})
    load = job(spark, topics, str(tmp_path), files=FileFormat("orc", ("dt",), 1 << 20))
    for n in range(4):
        topics.add(0, payload(1, plain, {"until": 253_402_214_400_000 + n}), ts_ms=n)
    assert load.run(TOPIC) is not None
    place = lake_files(str(tmp_path)), str(tmp_path)
    assert (verified(place).findings, verified(place).rows) == ([], 4)
    (row, *_) = read_lake(spark, str(tmp_path), TOPIC).selectExpr("max(unix_millis(until)) at").collect()
    assert row["at"] == 253_402_214_400_003
    topics.add(0, payload(1, plain, {"until": 0}), ts_ms=253_402_214_400_000)
    assert load.run(TOPIC) is not None
    assert "ORC timestamps can be read only from 1677-09-22 to 2262-04-11" in verified(place).findings[0].text


class Away(io.RawIOBase):
    """A file whose server went away after it was opened."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return 1000

    def tell(self) -> int:
        return 1000

    def readinto(self, buffer: Any) -> int:
        raise LakeUnavailableError("cannot read: WebHDFS does not answer")


def test_a_file_system_that_goes_away_is_no_damage(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalFiles, "open", lambda self, path: io.BufferedReader(Away()))
    with pytest.raises(LakeUnavailableError):
        verified((LocalFiles(), str(original)))


def test_the_commands_read_a_lake_on_hdfs(damaged: Damaged, original: Path) -> None:
    _, root = damaged("hdfs", original)
    web_url = damaged.request.getfixturevalue("on_hdfs")[1]
    assert run("verify", TOPIC, "--lake", root, "--webhdfs", web_url).exit_code == 0
    assert run("ls", root, "--webhdfs", web_url).stdout.splitlines()[1].split()[:3] == [TOPIC, "4", "53"]
    there = run("show", TOPIC, "--load", "2", "--lake", root, "--webhdfs", web_url).stdout
    here = run("show", TOPIC, "--load", "2", "--lake", str(original)).stdout
    assert there == here
