"""Markers of loads whose audit events are stored, and load numbers that are used a second time. No Spark."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from klamm.core.interfaces.audit import AuditIdentity, LoadOrigin, RangeCount, WindowCount
from klamm.core.records.partition import TopicPartition
from klamm.hadoop.lake.layout import AUDIT, OFFSETS, TopicLayout
from klamm.hadoop.lake.manifest import LakeOrigin, Manifest, lake_origin
from klamm.hadoop.load.audit import LoadAudit, LoadAuditor, load_origin
from klamm.hadoop.publishing.local import LocalPublisher
from klammtest.guarantees import guarantee


class Told:
    """As much of `klamm.core.interfaces.audit.Audit` as an auditor of loads uses; `spans` are those told."""

    topic = "__audit"

    def __init__(self) -> None:
        self.spans: list[tuple[int, int]] = []
        self.origins: list[LoadOrigin] = []

    def audits(self, topic: str) -> bool:
        return True

    def ranges(self, identity: object, publish: object) -> Told:
        return self

    def publish_ranges(self, ranges: Sequence[RangeCount]) -> None:
        self.spans += [(held.from_offset, held.to_offset) for held in ranges]
        self.origins += [held.load for held in ranges if held.load is not None]

    def close(self) -> None:
        """Nothing to close."""


def manifest(number: int, job_id: str, lake: LakeOrigin | None) -> Manifest:
    return Manifest(
        topic="flights", load=number, job_id=job_id, created_ms=1, rows=0, files=0, partitions={}, lake=lake
    )


class Lake:
    """Loads of one partition, without their rows."""

    def __init__(self, root: Path, topic_directory: str = "") -> None:
        self.origin = LakeOrigin(id="one", directory=topic_directory or f"file://{root}/flights")
        self.layout = TopicLayout(f"file://{root}", "flights")
        self.files = LocalPublisher()
        self.told = Told()

    def add(self, number: int, span: tuple[int, int], job_id: str) -> None:
        count = RangeCount(TopicPartition("flights", 0), *span, (WindowCount(0, span[1] - span[0], 1),))
        load = LoadAudit.of("lake", ("flights", None), number, job_id, 600_000, [count])
        self.files.make(self.layout.load(number))
        self.files.write(f"{self.layout.load(number)}/{AUDIT}", load.to_bytes())
        self.files.write(f"{self.layout.load(number)}/{OFFSETS}", manifest(number, job_id, self.origin).to_bytes())

    def send(self, owner: str = "lake") -> list[int]:
        auditor = LoadAuditor(self.told, owner, lambda: nullcontext(None), self.files)  # type: ignore[arg-type]
        return auditor.send_missing(self.layout)


def markers_by_number(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LoadAuditor, "_of_others", lambda self, layout, numbers, lake: [])


@guarantee("C9", "a load whose number was another's before tells the audit what it holds", plant=markers_by_number)
@pytest.mark.parametrize("failed", [False, True])
def test_a_number_that_is_given_again_is_told_again(tmp_path: Path, failed: bool) -> None:
    lake = Lake(tmp_path)
    for number in (1, 2, 3):
        lake.add(number, (100 * number, 100 * number + 100), f"job-{number}")
    assert lake.send() == [1, 2, 3]
    lake.told.spans.clear()
    for number in (2, 3):  # by hand, to be loaded again
        lake.files.remove(lake.layout.load(number))
    lake.add(2, (200, 350), "job-4")
    if not failed:
        assert lake.send() == [2]
    lake.add(3, (350, 400), "job-5")
    assert lake.send() == ([2, 3] if failed else [3])
    assert lake.told.spans == [(200, 350), (350, 400)]
    assert lake.send() == []


def test_a_lake_that_another_sink_fills_tells_all_its_loads_again(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for number in (1, 2):
        lake.add(number, (100 * number, 100 * number + 100), f"job-{number}")
    assert lake.send() == [1, 2]
    assert lake.send() == []
    assert lake.send("renamed") == [1, 2]


def test_a_load_that_was_never_told_is_told_and_those_of_another_directory_are_not(tmp_path: Path) -> None:
    """The directory was moved or copied: only its next load gives it an id, with which all are told again."""
    lake = Lake(tmp_path, "file:///elsewhere/flights")
    lake.add(1, (0, 100), "job-1")
    assert lake.send() == []
    lake.origin = LakeOrigin(id="two", directory=lake.layout.base, replaces=("one",))
    lake.add(2, (100, 200), "job-2")
    assert lake.send() == [1, 2]
    assert {(o.lake, o.replaces) for o in lake.told.origins} == {("two", ("one",))}


def test_a_local_directory_is_told_with_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """R6: with its path alone, a trial on another machine with production's file replaced production's lake there."""
    shared = LakeOrigin(id="two", directory="hdfs://n:1/lake/t")
    for host in ("one", "two"):
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        for path in ("/lake/t", "file:/lake/t", "file:///lake/t"):
            local = LakeOrigin(id="one", directory=path)
            assert load_origin(1, "job", local).directory == f"file://{host}/lake/t"
        assert load_origin(1, "job", shared).directory == "hdfs://n:1/lake/t"


def test_a_directory_keeps_its_id_and_one_that_was_moved_or_copied_gets_another(tmp_path: Path) -> None:
    files = LocalPublisher()

    def published(root: str, number: int, origin: LakeOrigin) -> Manifest:
        layout, made = TopicLayout(f"file://{tmp_path}/{root}", "flights"), manifest(number, f"job-{number}", origin)
        files.make(layout.load(number))
        files.write(f"{layout.load(number)}/{OFFSETS}", made.to_bytes())
        return made

    def origin(root: str, last: Manifest | None) -> LakeOrigin:
        return lake_origin(files, TopicLayout(f"file://{tmp_path}/{root}", "flights"), last, "new")

    first = origin("a", None)
    assert (first.id, first.replaces) == ("new", ())
    last = published("a", 1, LakeOrigin(id="one", directory=first.directory))
    assert origin("a", last) == last.lake
    copied = origin("b", last)
    assert (copied.id, copied.directory, copied.replaces) == ("new", f"file://{tmp_path}/b/flights", ())
    moved = published("a", 1, LakeOrigin(id="one", directory=first.directory, replaces=("zero",)))
    assert origin("b", moved).replaces == ("zero",)  # whether the audit has an event of "one" or not
    files.remove(f"file://{tmp_path}/a/flights")
    assert origin("b", last).replaces == ("one",)
    assert origin("b", moved).replaces == ("zero", "one")
    published("a", 1, LakeOrigin(id="two", directory=first.directory))  # begun again where it was
    assert origin("b", last).replaces == ("one",)


def test_a_marker_that_was_removed_by_hand_makes_its_load_told_again(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for number in (1, 2, 3):
        lake.add(number, (100 * number, 100 * number + 100), f"job-{number}")
    lake.send()
    lake.files.remove(lake.layout.audited(1))
    assert lake.send() == [1]


class Complete(Told):
    """An audit system that computes completeness; `asked` are the ranges that it was given."""

    def __init__(self, watermark: int | None = 1_200_000) -> None:
        super().__init__()
        self.watermark = watermark
        self.asked: list[tuple[str, int, int]] = []

    def watermark_ms(
        self, client: object, topic: str, identity: AuditIdentity, ranges: Sequence[RangeCount]
    ) -> int | None:
        self.asked += [(identity.owner, held.from_offset, held.to_offset) for held in ranges]
        return self.watermark


def watermark_of(audit: Told, *, wanted: bool = True) -> int | None:
    count = RangeCount(TopicPartition("flights", 0), 0, 7, (WindowCount(0, 7, 1),))
    load = LoadAudit.of("lake", ("flights", None), 1, "job", 600_000, [count])
    auditor = LoadAuditor(audit, "lake", lambda: nullcontext(None), LocalPublisher(), watermarks=wanted)  # type: ignore[arg-type]
    return auditor.watermark_ms(load, LakeOrigin(id="one", directory="file:///lake/flights"))


def test_the_watermark_of_a_load_includes_its_own_counts() -> None:
    audit = Complete()
    assert watermark_of(audit) == 1_200_000
    assert audit.asked == [("lake", 0, 7)]


def test_there_is_no_watermark_where_none_is_wanted_or_computed() -> None:
    audit = Complete()
    assert watermark_of(audit, wanted=False) is None
    assert audit.asked == []
    assert watermark_of(Told()) is None
