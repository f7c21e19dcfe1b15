"""`klamm lake` where a lake is named, and what it shows of one; without Spark and without HDFS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from rich.console import Console

from klamm.core.config.settings import load_settings
from klamm.core.errors import ConfigError, KlammError
from klamm.core.interfaces.audit import NO_WINDOW
from klamm.hadoop.lake.cli import ENDS
from klamm.hadoop.lake.generations.generation import DataFile, Generation, MergedLoad
from klamm.hadoop.lake.layout import AUDIT, GENERATION, OFFSETS, TopicLayout
from klamm.hadoop.lake.manifest import LakeOrigin, Manifest, PartitionRange
from klamm.hadoop.load.audit import LoadAudit
from klamm.hadoop.load.report import Status
from klamm.hadoop.publishing.interface import LakeError, LakeUnavailableError
from klammtest.hadoop.lakes import klamm_lake as run

WINDOW_MS = 600_000
DAY_MS = 1_356_998_400_000
"""2013-01-01."""


def why(*arguments: str) -> str:
    """The line of a command that is refused for what its user wrote."""
    error = run(*arguments).exception
    assert isinstance(error, ConfigError), repr(error)
    assert "\n" not in str(error)
    return str(error)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    return tmp_path


# -- where a lake is


@pytest.mark.parametrize(
    ("lake", "words"),
    [
        ("./a.txt", "./a.txt is a file; a lake is a directory"),
        ("./a.txt/", "./a.txt is a file; a lake is a directory"),
        ("./a.txt/lakes/one", "./a.txt is a file, so that there can be no lake at ./a.txt/lakes/one"),
        ("file:./a.txt/lake", "file:./a.txt is a file, so that there can be no lake at file:./a.txt/lake"),
        ("file://lake", "expected file:///…/lake or ./lake, got 'file://lake', where 'lake' is a host"),
        (
            "hdfs://lake",
            "expected hdfs://HOST:PORT/path, or hdfs:///path of the default file system, got 'hdfs://lake'",
        ),
        ("hdfs://host/lake#1", "expected a URI without a query ('?') and a fragment ('#'), got 'hdfs://host/lake#1'"),
    ],
)
def test_a_path_where_no_lake_can_be_is_refused_as_it_was_written(here: Path, lake: str, words: str) -> None:
    (here / "a.txt").touch()
    assert why("ls", lake) == words
    assert why("verify", "--lake", lake) == words
    assert why("gc", "--lake", lake) == words


def test_a_sink_whose_lake_lies_below_a_file_is_refused_as_it_was_written(here: Path) -> None:
    (here / "a.txt").touch()
    (here / "klamm.yaml").write_text("sinks: {s: {plugin: hadoop, topics: [t], path: ./a.txt/lake}}\n")
    words = "./a.txt is a file, so that there can be no lake at ./a.txt/lake"
    assert why("ls") == why("ls", "s") == f"klamm.yaml: sinks.s.path: {words}"


def test_a_lake_that_becomes_a_file_ends_a_run_as_a_mistake_of_the_configuration(here: Path) -> None:
    """Also where only the file system can tell, as on `hdfs:`."""
    from klamm.hadoop.load.loader import Loader

    sink = {"plugin": "hadoop", "topics": ["t"], "path": "lake"}
    with Loader(load_settings({"sinks": {"lake": sink}}), "lake", Console()) as loader:
        (here / "lake").touch()
        with pytest.raises(ConfigError) as caught:
            loader.run()
    assert str(caught.value) == f"configuration: sinks.lake.path: {here}/lake is a file; a lake is a directory"


def test_a_file_in_the_place_of_a_topic_is_one_line(here: Path) -> None:
    """Exit status 1: the file can be moved away, and no option was wrong."""
    from klamm.hadoop.load.loader import Loader

    (here / "lake").mkdir()
    (here / "lake" / "t").touch()
    words = f"{here}/lake/t is a file; the loads of a topic are in a directory"
    for command in ("show", "verify", "gc"):
        error = run(command, "t", "--lake", "./lake").exception
        assert type(error) is LakeError, repr(error)
        assert str(error) == words
    sink = {"plugin": "hadoop", "topics": ["t"], "path": "lake"}
    with Loader(load_settings({"sinks": {"lake": sink}}), "lake", Console()) as loader:
        report = loader.run()
    assert [(topic.status, topic.error) for topic in report.topics] == [(Status.FAILED, words)]
    assert (here / "lake" / "t").read_bytes() == b""


@pytest.mark.parametrize(
    ("lake", "words"),
    [
        ("s3://bucket/lake", 'has a connector for: spark.read.parquet("s3://bucket/lake/TOPIC")'),
        ("webhdfs://node:9870/lake", "write hdfs:, and --webhdfs (or webhdfs_url=) http://node:9870"),
    ],
)
def test_another_scheme_is_refused_with_those_that_can_be_read(lake: str, words: str) -> None:
    said = why("ls", lake)
    assert f"({lake}) cannot be read: `klamm lake` and read_lake read file:, and hdfs: by WebHDFS; " in said
    assert words in said


# -- WebHDFS


class WebHdfs(BaseHTTPRequestHandler):
    """As a NameNode answers for `/lake/flights/load=000001` and the file `/a.txt`."""

    folders = ("/", "/lake", "/lake/flights", "/lake/flights/load=000001")
    asked: list[str] = []  # noqa: RUF012 - a subclass for each server has its own

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        path = parts.path.removeprefix("/webhdfs/v1").rstrip("/") or "/"
        self.asked.append(path)
        if path.startswith("/a.txt/"):
            self._answer(403, _refusal("AccessControlException", "/a.txt (is not a directory)"))
        elif path not in (*self.folders, "/a.txt"):
            self._answer(404, _refusal("FileNotFoundException", f"File does not exist: {path}"))
        elif "op=LISTSTATUS" in parts.query:
            below = [each for each in self.folders if each != "/" and each.rpartition("/")[0] == path.rstrip("/")]
            named = [_status(each.rpartition("/")[2], "DIRECTORY") for each in below]
            self._answer(200, {"FileStatuses": {"FileStatus": [_status("", "FILE")] if path == "/a.txt" else named}})
        else:
            self._answer(200, {"FileStatus": _status("", "FILE" if path == "/a.txt" else "DIRECTORY")})

    def _answer(self, status: int, said: dict[str, Any]) -> None:
        data = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Nothing."""


class NoWebHdfs(WebHdfs):
    """Another server: a page where there is none."""

    def do_GET(self) -> None:
        data = b"<html>\n<h1>Not here</h1>\n"
        self.send_response(404)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class OtherJson(WebHdfs):
    """Another server, with JSON of its own."""

    def do_GET(self) -> None:
        self._answer(200, {"status": "green"})


def _refusal(kind: str, text: str) -> dict[str, Any]:
    return {"RemoteException": {"exception": kind, "javaClassName": kind, "message": text}}


def _status(name: str, kind: str) -> dict[str, Any]:
    return {"pathSuffix": name, "type": kind, "length": 3}


@contextmanager
def serving(handler: type[WebHdfs]) -> Iterator[tuple[str, list[str]]]:
    """Its address, and the paths that it was asked for."""
    asked: list[str] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (handler,), {"asked": asked})) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


ELSEWHERE = "hdfs://127.0.0.99:8020"
"""A NameNode that answers no WebHDFS at its usual port."""


def test_a_webhdfs_at_another_port_is_asked_for(here: Path) -> None:
    error = run("ls", f"{ELSEWHERE}/lake").exception
    assert isinstance(error, LakeUnavailableError)
    assert str(error).startswith(f"cannot list {ELSEWHERE}/lake: WebHDFS does not answer (")
    assert str(error).endswith(
        ") at http://127.0.0.99:9870; --webhdfs URL, or webhdfs.url in the sink, names another address"
    )
    chosen = run("ls", f"{ELSEWHERE}/lake", "--webhdfs", "http://127.0.0.99:1").exception
    assert str(chosen).endswith(") at http://127.0.0.99:1")


@pytest.mark.parametrize("server", [NoWebHdfs, OtherJson])
def test_what_is_no_webhdfs_is_one_line(here: Path, server: type[WebHdfs]) -> None:
    with serving(server) as (url, _):
        error = run("ls", f"{ELSEWHERE}/lake", "--webhdfs", url).exception
    assert isinstance(error, LakeUnavailableError)
    assert str(error) == f"cannot list {ELSEWHERE}/lake: the server is not a WebHDFS, at {url}"


@pytest.mark.parametrize("lake", [f"{ELSEWHERE}/lake", f"{ELSEWHERE}/lake/", f"{ELSEWHERE}/lake/below"])
def test_a_lake_that_is_named_by_its_path_is_read_by_the_webhdfs_of_its_sink(here: Path, lake: str) -> None:
    def sink(path: str, url: str) -> dict[str, Any]:
        return {"plugin": "hadoop", "topics": ["t"], "path": path, "webhdfs.url": url}

    with serving(WebHdfs) as (url, asked):
        sinks = {
            "other": sink(f"{ELSEWHERE}/lake2", "http://127.0.0.99:1"),
            "above": sink(f"{ELSEWHERE}/la", "http://127.0.0.99:2"),
            "lake": sink(f"{ELSEWHERE}/lake", url),
        }
        (here / "mine.yaml").write_text(yaml.safe_dump({"sinks": sinks}))
        done = run("ls", lake, "--config", "mine.yaml")
        assert not isinstance(done.exception, LakeUnavailableError), done.exception
        assert asked[0] == urlsplit(lake).path.rstrip("/")
        del asked[:]
        given = run("ls", lake, "--config", "mine.yaml", "--webhdfs", "http://127.0.0.99:1").exception
        assert isinstance(given, LakeUnavailableError)
        assert asked == []


def test_a_lake_on_hdfs_at_a_file_is_refused(here: Path) -> None:
    with serving(WebHdfs) as (url, _):
        assert why("ls", f"{ELSEWHERE}/a.txt", "--webhdfs", url) == (
            f"{ELSEWHERE}/a.txt is a file; a lake is a directory"
        )
        assert why("show", "t", "--lake", f"{ELSEWHERE}/a.txt/lake", "--webhdfs", url) == (
            f"{ELSEWHERE}/a.txt is a file, so that there can be no lake at {ELSEWHERE}/a.txt/lake"
        )
        nothing = run("ls", f"{ELSEWHERE}/nothing", "--webhdfs", url).exception
    assert type(nothing) is KlammError
    assert "no topic of a lake found" in str(nothing)


# -- what is shown


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A load of 40 partitions with 5 windows in each, and 60 files; and a generation of it."""
    root = tmp_path_factory.mktemp("wide")
    layout = TopicLayout(str(root), "trips")
    folder = Path(layout.load(1))
    (folder / "dt=2013-01-01").mkdir(parents=True)
    for number in range(60):
        (folder / "dt=2013-01-01" / f"part-{number:05d}.parquet").write_bytes(b"x" * number)
    partitions = {n: PartitionRange(start=0, end=50) for n in range(40)}
    manifest = Manifest(
        topic="trips",
        load=1,
        job_id="j",
        created_ms=DAY_MS,
        rows=2000,
        files=60,
        partitions=partitions,
        lake=LakeOrigin(id="one", directory=layout.base),
    )
    (folder / OFFSETS).write_bytes(manifest.to_bytes())
    windows = [(NO_WINDOW, 10, 1), *((DAY_MS + n * WINDOW_MS, 10, 1) for n in range(4))]
    ranges = [{"partition": n, "from": 0, "to": 50, "windows": windows} for n in range(40)]
    said = {"owner": "lake", "topic": "trips", "load": 1, "job_id": "j", "window_ms": WINDOW_MS, "ranges": ranges}
    (folder / AUDIT).write_bytes(LoadAudit.model_validate(said).to_bytes())
    counts = dict.fromkeys(range(40), 50)
    loads = [MergedLoad(load=n, job_id="j", created_ms=0, digest="d", rows=counts, ends=counts) for n in range(1, 31)]
    generation = Generation(
        topic="trips", generation=1, job_id="j", created_ms=DAY_MS, format="parquet", partition_by=("dt",), rows=2000,
        loads=loads, files=[DataFile(name=f"dt=2013-01-01/part-{n:05d}.parquet", bytes=n) for n in range(20)],
    )  # fmt: skip
    Path(layout.generation(1)).mkdir(parents=True)
    (Path(layout.generation(1)) / GENERATION).write_bytes(generation.to_bytes())
    return root


def test_a_load_in_detail_is_a_page_with_instants_in_iso_8601(wide: Path) -> None:
    lines = run("show", "trips", "--load", "1", "--lake", str(wide)).stdout.splitlines()
    assert len(lines) < 45
    assert "offsets: 0:0-50,1:0-50,2:0-50,3:0-50,4:0-50,… 30 more …,35:0-50,36:0-50,37:0-50,38:0-50,39:0-50" in lines
    [at] = [n for n, line in enumerate(lines) if line.split() == ["partition", "offsets", "window", "rows", "bytes"]]
    assert lines[at + 1].split() == ["0", "0-50", "no", "timestamp", "10", "1"]
    assert lines[at + 2].split() == ["0", "0-50", "2013-01-01T00:00Z", "10", "1"]
    assert lines[at + 1 + ENDS].split() == ["…"] * 5
    assert lines[at + 1 + 2 * ENDS].split() == ["39", "0-50", "2013-01-01T00:30Z", "10", "1"]
    assert lines[at + 2 + 2 * ENDS] == f"200 windows, of which the first and last {ENDS} are listed; --all lists all"
    assert lines[-2].split() == ["dt=2013-01-01/part-00059.parquet", "59"]
    assert lines[-1] == f"60 files, of which the first and last {ENDS} are listed; --all lists all"
    assert "1356998400000" not in "".join(lines)


def test_a_generation_in_detail_is_a_page(wide: Path) -> None:
    lines = run("show", "trips", "--generation", "1", "--lake", str(wide)).stdout.splitlines()
    assert f"30 loads, of which the first and last {ENDS} are listed; --all lists all" in lines
    assert f"20 files, of which the first and last {ENDS} are listed; --all lists all" in lines
    assert "… 30 more …" in next(line for line in lines if line.split()[:2] == ["1", "2000"])
    assert len(lines) < 45


def test_all_is_listed_when_it_is_asked_for_and_in_json(wide: Path) -> None:
    lines = run("show", "trips", "--load", "1", "--all", "--lake", str(wide)).stdout
    assert "…" not in lines
    assert lines.count("2013-01-01T00:30Z") == 40
    assert lines.count(".parquet") == 60
    said = json.loads(run("show", "trips", "--load", "1", "--json", "--lake", str(wide)).stdout)
    assert len(said["files"]) == 60
    assert len(said["audit"]["ranges"]) == 40
    assert said["audit"]["ranges"][0]["windows"][1][0] == DAY_MS
    [row] = [json.loads(line) for line in run("show", "trips", "--json", "--lake", str(wide)).stdout.splitlines()][:1]
    assert row["offsets"].count("0-50") == 40
    short = run("show", "trips", "--lake", str(wide)).stdout
    assert "… 30 more …" in " ".join(short.split())
