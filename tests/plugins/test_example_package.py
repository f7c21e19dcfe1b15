"""The example package, installed as a user would: `klamm plugins` names it, its codec and its sink do real work."""

from __future__ import annotations

import lzma
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from klamm.core.client.consumer.consumer import Consumer
from klamm.core.config.settings import load_settings
from klamm.core.errors import CorruptRecordError, ErrorCode, KlammError
from klamm.core.interfaces.codec import Codec, DecompressionBombError
from klamm.core.plugins import plugin_host
from klamm.core.records.header import iter_headers
from klamm.core.records.partition import TopicPartition
from klammtest.broker import ENVIRONMENT, KLAMM, SPAWNED, RunningBroker, running_broker

PACKAGE = Path(__file__).resolve().parents[2] / "examples" / "plugins" / "klamm-extras"
RECORDS = 2000
PROGRAM = f"""
import sys
import klamm
with klamm.Producer("klamm.yaml") as producer:
    for i in range({RECORDS}):
        producer.send("archive", f"value {{i}}".encode())
seen = []
with klamm.Consumer("klamm.yaml", group="readers", topics=["archive"]) as consumer:
    while len(seen) < {RECORDS}:
        seen += [record.value.decode() for record in consumer.poll(1.0)]
print(seen == [f"value {{i}}" for i in range({RECORDS})])
"""


@dataclass
class Installed:
    """An environment in which the package is installed, beside the one that the tests run in."""

    site: Path

    def run(self, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join((SPAWNED, str(self.site)))}
        return subprocess.run(command, cwd=cwd, env=env, text=True, capture_output=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    source = tmp_path_factory.mktemp("source") / PACKAGE.name
    shutil.copytree(PACKAGE, source)  # building leaves files behind
    site = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--no-index"]
    done = subprocess.run(
        [*pip, "--no-build-isolation", "--target", str(site), str(source)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return Installed(site)


@pytest.fixture(scope="module")
def broker(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    folder = tmp_path_factory.mktemp("broker")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENVIRONMENT, "PYTHONPATH", os.pathsep.join((SPAWNED, str(installed.site))))
        with running_broker(folder) as running:
            text = running.config_path.read_text()
            text += "topics: {archive: {partitions: 1, config: {compression.type: xz}}, plain: {partitions: 1}}\n"
            text += f"producer: {{bootstrap.servers: '{running.bootstrap}', compression.type: xz}}\n"
            text += f"consumer: {{bootstrap.servers: '{running.bootstrap}', auto.offset.reset: earliest}}\n"
            text += "sinks: {table: {plugin: sqlite, topics: [archive], path: archive.db}}\n"
            running.config_path.write_text(text)
            done = installed.run(KLAMM, "topics", "create", "--all-from-config", cwd=folder)
            assert done.returncode == 0, done.stderr
            yield running


def test_klamm_plugins_names_it(installed: Installed, tmp_path: Path) -> None:
    done = installed.run(KLAMM, "plugins", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    row = next(i for i, line in enumerate(lines) if line.startswith("klamm-extras:extras"))
    assert lines[row].split() == ["klamm-extras:extras", "klamm_extras", "klamm-extras", "0.1.0", "klamm_codecs", "xz"]
    assert lines[row + 1].split() == ["klamm_sinks", "sqlite"]


def test_the_codec_and_the_sink_do_real_work(installed: Installed, broker: RunningBroker) -> None:
    done = installed.run(sys.executable, "-c", PROGRAM, cwd=broker.folder)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    stored = b"".join(path.read_bytes() for path in sorted((broker.log_dir / "archive-0").glob("*.log")))
    assert {header.codec_id for _, header in iter_headers(stored)} == {5}

    for expected in (RECORDS, 0):  # a second run finds nothing new
        sink = installed.run(KLAMM, "sink", "table", "--once", cwd=broker.folder)
        assert sink.stdout.startswith(f"sink table: {expected} records"), sink.stderr
    database = sqlite3.connect(broker.folder / "archive.db")
    rows = database.execute('SELECT "offset", value FROM records ORDER BY "offset"').fetchall()
    database.close()
    assert rows == [(i, f"value {i}".encode()) for i in range(RECORDS)]


def test_a_topic_that_does_not_name_the_codec_refuses_it(installed: Installed, broker: RunningBroker) -> None:
    program = "import klamm; p = klamm.Producer('klamm.yaml'); print(p.send('plain', b'x').exception(30)); p.close()"
    done = installed.run(sys.executable, "-c", program, cwd=broker.folder)
    assert "UNSUPPORTED_COMPRESSION_TYPE" in done.stdout, done.stderr


def read_for_ever(consumer: Consumer) -> None:
    while True:
        consumer.poll(1.0)


def test_a_client_without_the_package_gets_a_clear_error(broker: RunningBroker, tmp_path: Path) -> None:
    file = tmp_path / "klamm.yaml"
    file.write_text(f"consumer: {{bootstrap.servers: '{broker.bootstrap}', auto.offset.reset: earliest}}\n")
    with Consumer(load_settings(file)) as consumer:
        consumer.assign([TopicPartition("archive", 0)])
        with pytest.raises(KlammError) as caught:
            read_for_ever(consumer)
    assert caught.value.code == ErrorCode.unsupported_compression_type
    with pytest.raises(KlammError, match="unknown codec 'xz'"):
        load_settings({"producer": {"compression.type": "xz"}})


def test_without_the_package_its_sink_is_one_line(broker: RunningBroker) -> None:
    done = subprocess.run([KLAMM, "sink", "table"], cwd=broker.folder, capture_output=True, text=True, timeout=180)
    assert done.returncode == 2
    assert "sinks.table.plugin: unknown sink 'sqlite'" in done.stderr


@pytest.fixture
def xz(monkeypatch: pytest.MonkeyPatch) -> Codec:
    monkeypatch.syspath_prepend(str(PACKAGE))
    return plugin_host(("klamm_extras",)).codecs.create("xz")


def test_the_codecs_output_is_bounded(xz: Codec) -> None:
    bomb = lzma.compress(b"\0" * 50_000_000)
    assert len(bomb) < 10_000
    with pytest.raises(DecompressionBombError, match="bound of 1000000 bytes"):
        xz.decompress(bomb, 1_000_000)
    assert xz.decompress(xz.compress(b"x" * 1000), 1000) == b"x" * 1000


def test_the_codec_refuses_what_is_cut_or_flipped(xz: Codec) -> None:
    packed = xz.compress(b"some records " * 100)
    for bad in (b"", packed[:-1], packed[:20], packed + b"x", b"\0" * 64, packed[:30] + b"\xff" + packed[31:]):
        with pytest.raises(CorruptRecordError):
            xz.decompress(bad, 10_000)
