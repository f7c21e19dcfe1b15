"""What a former source keeps before it mirrors its former mirror (docs/mirror.md, section "Adopt")."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest

from klamm.core.config.sections.topic import TopicConfig
from klamm.core.log.cut_batches import adopted_cut, set_aside_before_adoption
from klamm.core.log.manager import LogManager
from klamm.core.log.partition_log import PartitionLog
from klamm.core.mirror.adoption import PromotionStart, adopted, common_end
from klamm.core.records.codecs import CodecTable
from klamm.core.records.partition import TopicPartition
from klamm.core.replication.partition_state import PartitionState
from klammtest.logs import batch

TP = TopicPartition("trips", 0)
CONFIG = TopicConfig()
OLD, NEW = UUID(int=1), UUID(int=2)


@contextmanager
def opened(folder: Path) -> Iterator[LogManager]:
    logs = LogManager(folder, broker_id=0, cluster_id="c", codecs=CodecTable())
    try:
        yield logs
    finally:
        logs.close()


def written(log: PartitionLog, *epochs: int) -> None:
    """Appends a record in each of these leader epochs."""
    for epoch in epochs:
        log.lead(epoch)
        log.append_as_leader(bytearray(batch([b"x"])), epoch, commit=True)


@pytest.mark.parametrize(
    ("promotion", "end"),
    [
        (PromotionStart(2, 9), 2),
        (PromotionStart(4, 9), 4),
        (PromotionStart(9, 9), 5),
        (PromotionStart(9, 7), 4),
        (PromotionStart(9, 6), 2),
        (PromotionStart(0, 2), 0),
    ],
)
def test_a_log_is_cut_at_the_promotion_and_at_epochs_from_after_it(
    tmp_path: Path, promotion: PromotionStart, end: int
) -> None:
    with opened(tmp_path) as logs:
        log = logs.create(TP, OLD, CONFIG)
        written(log, 3, 3, 6, 6, 8)
        assert common_end(log, promotion) == end


def test_a_log_is_taken_over_once(tmp_path: Path) -> None:
    promotion = PromotionStart(2, 9)
    with opened(tmp_path) as logs:
        log = logs.create(TP, OLD, CONFIG)
        written(log, 3, 3, 3, 3)
        logs.take_over(TP, OLD, NEW, lambda log: common_end(log, promotion))
        assert (log.log_end_offset, log.high_watermark) == (2, 2)
        cut = adopted_cut(log)
        assert cut is not None
        assert cut[:2] == (2, 4)
    with opened(tmp_path) as logs:
        log = logs.create(TP, NEW, CONFIG)
        assert log.log_end_offset == 2
        written(log, 9)
        logs.take_over(TP, OLD, NEW, lambda log: common_end(log, promotion))
        assert log.log_end_offset == 3


def test_what_was_cut_is_known_after_a_crash_on_the_way(tmp_path: Path) -> None:
    with opened(tmp_path) as logs:
        log = logs.create(TP, OLD, CONFIG)
        written(log, 3, 3, 3, 3)
        set_aside_before_adoption(log, 2, NEW)
        log.truncate_to(3)
        assert adopted_cut(log) is None, "of this topic id"
    with opened(tmp_path) as logs:
        logs.take_over(TP, OLD, NEW, lambda log: common_end(log, PromotionStart(2, 9)))
    with opened(tmp_path) as logs:
        log = logs.create(TP, NEW, CONFIG)
        cut = adopted_cut(log)
        assert log.log_end_offset == 2
        assert cut is not None
        assert cut[:2] == (2, 4)


def test_a_log_that_begins_above_the_promotion_is_emptied(tmp_path: Path) -> None:
    with opened(tmp_path) as logs:
        log = logs.create(TP, OLD, CONFIG)
        written(log, 3, 3, 3, 3)
        log.delete_records_before(3)
        logs.take_over(TP, OLD, NEW, lambda log: common_end(log, PromotionStart(1, 9)))
        assert (log.log_start_offset, log.log_end_offset) == (1, 1)
        cut = adopted_cut(log)
        assert cut is not None
        assert cut[:2] == (3, 4)


def test_only_the_leader_is_in_sync_and_in_an_epoch_of_its_own() -> None:
    state = PartitionState(1, 7, 5, (1, 2), (0,), {0: "a", 1: "b", 2: "c"}, 1)
    found = adopted(state, "rome", PromotionStart(2, 9), 0)
    assert (found.isr, found.elr, found.data_ids, found.mirror) == ((1,), (), {1: "b"}, "rome")
    assert found.leader_epoch == 9
