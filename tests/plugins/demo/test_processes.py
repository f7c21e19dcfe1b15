from __future__ import annotations

import io
import signal
import sys
from pathlib import Path

import pytest
from rich.console import Console

from klamm.core.config.settings import load_settings
from klamm.core.errors import ConfigError
from klamm.hadoop.lake.config import LakeConfig
from klamm.plugins.demo.processes import Child, DemoError, Processes, wait_for
from klamm.plugins.demo.show import Show
from klamm.plugins.demo.steps.hdfs import await_hdfs, start_hdfs
from klamm.plugins.demo.steps.produce import LineCounter
from klamm.plugins.demo.workspace import HdfsAddress, Workspace


def sleeper(processes: Processes) -> Child:
    return processes.start("sleeper", [sys.executable, "-c", "print('up', flush=True); import time; time.sleep(600)"])


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    path = tmp_path / "logs"
    path.mkdir()
    return path


def test_all_processes_end_with_the_demo(logs: Path) -> None:
    with Processes(logs) as processes:
        child = sleeper(processes)
        wait_for(lambda: "up" in child.output(), "the start", 30, child)
    assert not child.running
    with pytest.raises(DemoError, match="ending"):
        sleeper(processes)


def test_a_process_that_fails_is_named_with_what_it_said(logs: Path) -> None:
    with Processes(logs) as processes, pytest.raises(DemoError, match="talker ended with status 3: no luck"):
        processes.run("talker", [sys.executable, "-c", "import sys; print('no luck'); sys.exit(3)"], 30)


def test_waiting_ends_when_a_watched_process_does(logs: Path) -> None:
    with Processes(logs) as processes:
        child = sleeper(processes)
        child.signal(signal.SIGKILL)
        with pytest.raises(DemoError, match="sleeper ended with status -9"):
            wait_for(lambda: False, "nothing", 30, child)


def test_each_run_has_a_directory_and_a_valid_configuration(tmp_path: Path) -> None:
    one, other = Workspace.make(tmp_path), Workspace.make(tmp_path)
    assert one.root != other.root
    settings = load_settings(one.config)
    assert settings.producer.bootstrap_servers == one.bootstrap
    assert settings.topics["flights"].partitions == 6
    assert settings.topic_format("flights").schema
    first = one.broker_port
    others = one.zookeeper_port, one.registry_port, one.offline_port
    assert others == tuple(range(first + 3, first + 6)), "beside the ports of three brokers"


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="give another --dir"):
        Workspace.make(tmp_path / "file")


def test_the_configuration_follows_the_lake_to_hdfs(tmp_path: Path) -> None:
    local = Workspace.make(tmp_path)
    moved = local.with_lake_on(HdfsAddress(1001, 1002, 1003, 1004, 1005))
    assert (moved.offline, moved.lake) == (local.offline, "hdfs://127.0.0.1:1001/lake")
    config = load_settings(moved.offline).sink("lake").choice.config
    assert isinstance(config, LakeConfig)
    assert (config.path, config.webhdfs_url) == (moved.lake, "http://127.0.0.1:1002")


def test_without_the_jars_of_hdfs_a_line_says_so_and_the_lake_is_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, said = Workspace.make(tmp_path), io.StringIO()
    monkeypatch.setenv("KLAMM_HDFS_JARS", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", str(tmp_path))  # no Maven
    with Processes(workspace.logs) as processes:
        starting = start_hdfs(workspace, processes)
        assert await_hdfs(starting, workspace, Show(Console(file=said), 0)) == workspace
    [line] = said.getvalue().splitlines()
    assert "no HDFS here, so the lake is on file: klamm: HDFS's jars are missing, and Maven" in line


def test_an_hdfs_that_does_not_start_ends_the_demo(tmp_path: Path) -> None:
    workspace = Workspace.make(tmp_path)
    (workspace.root / "hdfs").write_text("a file where its data should be")
    with Processes(workspace.logs) as processes:
        starting = start_hdfs(workspace, processes)
        with pytest.raises(DemoError, match="hdfs ended with status 1: klamm: cannot write below"):
            await_hdfs(starting, workspace, Show(Console(file=io.StringIO()), 0))


def test_lines_of_a_growing_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    counter = LineCounter(path)
    assert counter.count() == 0
    path.write_text("a\nb\nc")
    assert counter.count() == 2
    with path.open("a") as file:
        file.write("\nd\n")
    assert counter.count() == 4
