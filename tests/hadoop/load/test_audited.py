"""Markers of loads whose audit events are stored, and load numbers that are used a second time. No Spark."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from klamm.core.interfaces.audit import AuditIdentity, RangeCount, WindowCount
from klamm.core.records.partition import TopicPartition
from klamm.hadoop.lake.layout import AUDIT, TopicLayout
from klamm.hadoop.load.audit import LoadAudit, LoadAuditor
from klamm.hadoop.publishing.local import LocalPublisher
from klammtest.guarantees import guarantee


class Told:
    """As much of `klamm.core.interfaces.audit.Audit` as an auditor of loads uses; `spans` are those told."""

    topic = "__audit"

    def __init__(self) -> None:
        self.spans: list[tuple[int, int]] = []

    def audits(self, topic: str) -> bool:
        return True

    def ranges(self, identity: object, publish: object) -> Told:
        return self

    def publish_ranges(self, ranges: Sequence[RangeCount]) -> None:
        self.spans += [(held.from_offset, held.to_offset) for held in ranges]

    def close(self) -> None:
        """Nothing to close."""


class Lake:
    """Loads of one partition, without their rows."""

    def __init__(self, root: Path) -> None:
        self.layout = TopicLayout(f"file://{root}", "flights")
        self.files = LocalPublisher()
        self.told = Told()

    def add(self, number: int, span: tuple[int, int], job_id: str) -> None:
        count = RangeCount(TopicPartition("flights", 0), *span, (WindowCount(0, span[1] - span[0], 1),))
        load = LoadAudit.of("lake", ("flights", None), number, job_id, 600_000, [count])
        self.files.make(self.layout.load(number))
        self.files.write(f"{self.layout.load(number)}/{AUDIT}", load.to_bytes())

    def send(self) -> list[int]:
        auditor = LoadAuditor(self.told, "lake", lambda: nullcontext(None), self.files)  # type: ignore[arg-type]
        return auditor.send_missing(self.layout)


def markers_by_number(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LoadAuditor, "_of_others", lambda self, layout, numbers: [])


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


def test_a_marker_of_a_former_version_names_no_job_and_its_load_is_told_once_more(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.files.make(lake.layout.audited_root)
    for number in (1, 2):
        lake.add(number, (100 * number, 100 * number + 100), f"job-{number}")
        lake.files.write(lake.layout.audited(number), b"")
    assert lake.send() == [1, 2]
    assert lake.send() == []


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
    return auditor.watermark_ms(load)


def test_the_watermark_of_a_load_includes_its_own_counts() -> None:
    audit = Complete()
    assert watermark_of(audit) == 1_200_000
    assert audit.asked == [("lake", 0, 7)]


def test_there_is_no_watermark_where_none_is_wanted_or_computed() -> None:
    audit = Complete()
    assert watermark_of(audit, wanted=False) is None
    assert audit.asked == []
    assert watermark_of(Told()) is None
