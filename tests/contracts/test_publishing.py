"""The publishing contract: what every file system must do before a lake may live on it (design D11)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from klamm.core.errors import ConfigError
from klamm.hadoop.publishing.interface import LakeError, NoLakeError, Publisher, TargetExistsError, check_root
from klamm.hadoop.publishing.local import LocalPublisher, local_path
from klamm.hadoop.publishing.schemes import publisher_for
from klammtest.hadoop.hdfs_client import Administration, new_publisher

RACES = 60
LISTINGS = 100

Age = Callable[[str, float], None]
"""Makes a file's last write that many seconds older."""


def on_file(request: pytest.FixtureRequest) -> tuple[Publisher, str, Age]:
    def age(path: str, seconds: float) -> None:
        file = local_path(path)
        os.utime(file, (file.stat().st_mtime - seconds,) * 2)

    return LocalPublisher(), f"file://{request.getfixturevalue('tmp_path')}/lake", age


def on_hdfs(request: pytest.FixtureRequest) -> tuple[Publisher, str, Age]:
    root: str = request.getfixturevalue("hdfs_root")
    return new_publisher(), f"{root}/lake", lambda path, seconds: Administration(root).age(path, seconds)


IMPLEMENTATIONS = {"file": on_file, "hdfs": on_hdfs}


@pytest.fixture(params=sorted(IMPLEMENTATIONS))
def aging_lake(request: pytest.FixtureRequest) -> tuple[Publisher, str, Age]:
    publisher, root, age = IMPLEMENTATIONS[request.param](request)
    publisher.make(root)
    return publisher, root, age


@pytest.fixture
def lake(aging_lake: tuple[Publisher, str, Age]) -> tuple[Publisher, str]:
    return aging_lake[:2]


def stage(publisher: Publisher, path: str, owner: str, files: int = 2) -> None:
    publisher.make(f"{path}/dt=2013-01-01")
    for number in range(files):
        publisher.write(f"{path}/dt=2013-01-01/part-{number}", owner.encode())
    publisher.write(f"{path}/_offsets.json", owner.encode())


def test_a_published_directory_is_whole_and_the_staged_one_gone(lake: tuple[Publisher, str]) -> None:
    publisher, root = lake
    stage(publisher, f"{root}/_staging/a", "a")
    publisher.publish(f"{root}/_staging/a", f"{root}/load=000001")
    assert publisher.names(root) == ["_staging", "load=000001"]
    assert publisher.names(f"{root}/_staging") == []
    assert publisher.files(f"{root}/load=000001") == [
        ("_offsets.json", 1),
        ("dt=2013-01-01/part-0", 1),
        ("dt=2013-01-01/part-1", 1),
    ]


def test_a_file_of_this_machine_is_put_whole_where_none_is(lake: tuple[Publisher, str], tmp_path: Path) -> None:
    publisher, root = lake
    source = tmp_path / "a file"
    source.write_bytes(os.urandom(3 << 20))
    publisher.put(source, f"{root}/_staging/a/dt=2013-01-01/part-0")
    publisher.sync(f"{root}/_staging/a")
    assert publisher.read(f"{root}/_staging/a/dt=2013-01-01/part-0") == source.read_bytes()
    with pytest.raises(LakeError, match="part-0"):
        publisher.put(source, f"{root}/_staging/a/dt=2013-01-01/part-0")
    with pytest.raises(LakeError):
        publisher.put(tmp_path / "none", f"{root}/_staging/a/part-1")


def test_the_folder_of_a_path_is_where_others_see_it(lake: tuple[Publisher, str]) -> None:
    publisher, root = lake
    folder = publisher.folder(root)
    if folder is not None:  # of this machine's file system
        (folder / "part-0").write_bytes(b"x")
        assert publisher.read(f"{root}/part-0") == b"x"


def test_a_taken_target_is_refused_and_neither_side_changes(lake: tuple[Publisher, str]) -> None:
    publisher, root = lake
    for owner in "ab":
        stage(publisher, f"{root}/_staging/{owner}", owner)
    publisher.publish(f"{root}/_staging/a", f"{root}/load=000001")
    before = publisher.files(f"{root}/load=000001")
    with pytest.raises(TargetExistsError):
        publisher.publish(f"{root}/_staging/b", f"{root}/load=000001")
    assert publisher.files(f"{root}/load=000001") == before
    assert publisher.read(f"{root}/load=000001/_offsets.json") == b"a"
    assert len(publisher.files(f"{root}/_staging/b")) == 3


def test_a_target_that_is_a_file_is_refused(lake: tuple[Publisher, str]) -> None:
    publisher, root = lake
    stage(publisher, f"{root}/_staging/a", "a")
    publisher.write(f"{root}/load=000001", b"not ours")
    with pytest.raises(TargetExistsError):
        publisher.publish(f"{root}/_staging/a", f"{root}/load=000001")
    assert publisher.read(f"{root}/load=000001") == b"not ours"


def test_a_staging_directory_that_is_gone_is_an_error_and_makes_no_target(lake: tuple[Publisher, str]) -> None:
    publisher, root = lake
    with pytest.raises(LakeError):
        publisher.publish(f"{root}/_staging/a", f"{root}/load=000001")
    assert publisher.names(root) == []


def test_of_two_racing_publishers_exactly_one_wins_and_nothing_lands_inside_the_winner(
    lake: tuple[Publisher, str],
) -> None:
    publisher, root = lake
    stage(publisher, f"{root}/_staging/a", "a", files=1)
    stage(publisher, f"{root}/_staging/b", "b", files=1)
    for race in range(RACES):
        target = f"{root}/load={race:06d}"
        won = run_race(publisher, root, target)
        assert len(won) == 1, f"race {race}: {won}"
        names = [name for name, _ in publisher.files(target)]
        assert names == ["_offsets.json", "dt=2013-01-01/part-0"], f"race {race}: {names}"
        assert publisher.read(f"{target}/_offsets.json") == won[0].encode()
        assert publisher.read(f"{target}/dt=2013-01-01/part-0") == won[0].encode()
        loser = "b" if won[0] == "a" else "a"
        assert len(publisher.files(f"{root}/_staging/{loser}")) == 2
        stage(publisher, f"{root}/_staging/{won[0]}", won[0], files=1)  # the loser's is as it was


def run_race(publisher: Publisher, root: str, target: str) -> list[str]:
    """Two publishers of what `a` and `b` have staged let go at once; the names of those told that they won."""
    barrier = threading.Barrier(2)
    won: list[str] = []

    def run(owner: str) -> None:
        barrier.wait()
        try:
            publisher.publish(f"{root}/_staging/{owner}", target)
        except TargetExistsError:
            return
        won.append(owner)

    threads = [threading.Thread(target=run, args=(owner,)) for owner in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return won


def test_files_are_written_whole_and_replaced(lake: tuple[Publisher, str]) -> None:
    publisher, root = lake
    assert publisher.read(f"{root}/a") is None
    publisher.write(f"{root}/a", b"1")
    publisher.write(f"{root}/a", b"22")
    assert publisher.read(f"{root}/a") == b"22"
    assert publisher.names(root) == ["a"]


def test_a_file_that_is_being_written_is_listed_by_nobody(lake: tuple[Publisher, str]) -> None:
    publisher, root = lake
    stop = threading.Event()

    def beat() -> None:
        while not stop.is_set():
            publisher.write(f"{root}/beat", b"x")

    publisher.write(f"{root}/beat", b"x")
    writer = threading.Thread(target=beat)
    writer.start()
    try:
        for _ in range(LISTINGS):
            assert publisher.names(root) == ["beat"]
            assert publisher.files(root) == [("beat", 1)]
            publisher.tidy(root, 3600)
    finally:
        stop.set()
        writer.join()
    assert publisher.read(f"{root}/beat") == b"x"


def test_what_is_not_there_has_no_names_no_age_and_can_be_removed_and_not_moved(lake: tuple[Publisher, str]) -> None:
    publisher, root = lake
    assert publisher.names(f"{root}/gone") == []
    assert publisher.age_s(f"{root}/gone") is None
    assert publisher.move(f"{root}/gone", f"{root}/there") is False
    publisher.remove(f"{root}/gone")
    publisher.make(f"{root}/x/y")
    publisher.make(f"{root}/x/y")
    publisher.remove(f"{root}/x")
    assert publisher.names(root) == []


def test_a_file_is_told_from_a_directory_and_a_lake_at_or_below_one_is_refused(lake: tuple[Publisher, str]) -> None:
    publisher, root = lake
    publisher.make(f"{root}/x")
    publisher.write(f"{root}/x/a", b"1")
    paths = ("x", "x/a", "x/gone", "x/a/below", "x/a/below/it")
    assert [publisher.is_file(f"{root}/{path}") for path in paths] == [False, True, False, False, False]
    for there in (root, f"{root}/x", f"{root}/gone/lake"):
        check_root(publisher, there)
    with pytest.raises(NoLakeError) as caught:
        check_root(publisher, f"{root}/x/a")
    assert str(caught.value) == f"{root}/x/a is a file; a lake is a directory"
    with pytest.raises(NoLakeError) as caught:
        check_root(publisher, f"{root}/x/a/b/lake")
    assert str(caught.value) == f"{root}/x/a is a file, so that there can be no lake at {root}/x/a/b/lake"


def test_an_age_is_measured_from_the_last_write(aging_lake: tuple[Publisher, str, Age]) -> None:
    publisher, root, make_older = aging_lake
    publisher.write(f"{root}/a", b"")
    age = publisher.age_s(f"{root}/a")
    assert age is not None
    assert age < 3600
    make_older(f"{root}/a", 7200)
    assert 7200 <= (publisher.age_s(f"{root}/a") or 0) < 7200 + 3600
    assert publisher.names(root) == ["a"]


def test_what_a_writer_that_died_left_is_tidied_when_it_is_old(aging_lake: tuple[Publisher, str, Age]) -> None:
    publisher, root, make_older = aging_lake
    publisher.write(f"{root}/kept", b"1")
    left = f"{root}/.beat.{'0' * 32}"
    publisher.write(left, b"half")
    publisher.tidy(root, 3600)
    assert publisher.read(left) == b"half"
    make_older(left, 7200)
    make_older(f"{root}/kept", 7200)
    publisher.tidy(root, 3600)
    assert publisher.read(left) is None
    assert publisher.names(root) == ["kept"]


def no_jvm() -> NoReturn:
    raise AssertionError("a lake on this scheme needs no JVM")


@pytest.mark.parametrize("path", ["s3a://bucket/lake", "webhdfs://node:9870/lake", "viewfs:///lake"])
def test_other_schemes_are_refused_in_one_line(path: str) -> None:
    with pytest.raises(ConfigError, match="publishing contract") as caught:
        publisher_for(path, no_jvm)
    assert "\n" not in str(caught.value)


def test_plain_paths_and_uris_name_the_same_place() -> None:
    assert {
        local_path(p) for p in ("/a/b%20 c", "file:///a/b%20 c", "file:/a/b%20 c", "file://localhost/a/b%20 c")
    } == {Path("/a/b%20 c")}


@pytest.mark.parametrize("path", ["relative/lake", "file://elsewhere/lake", "file:lake"])
def test_a_path_that_is_not_absolute_or_not_here_is_refused(path: str) -> None:
    with pytest.raises(LakeError):
        local_path(path)
