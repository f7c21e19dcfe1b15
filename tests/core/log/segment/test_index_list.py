"""The indexes of a segment are a list: each file of it is sealed, renamed and removed with the segment."""

from __future__ import annotations

from pathlib import Path

from klamm.core.log.segment.index_file import SegmentState
from klamm.core.log.segment.naming import INDEXES
from klamm.core.log.segment.segment_indexes import LargestTimestamp, SegmentIndexes
from klamm.core.log.segment.transaction_index import AbortedEntry

STATE = SegmentState(100, 5, 7, 4, 1)
ABORTED = AbortedEntry(9, 1, 4, 5)


def suffixes(folder: Path) -> set[str]:
    return {path.name.partition(".")[2] for path in folder.iterdir()}


def test_each_index_has_a_name_of_the_list_and_is_treated_alike(tmp_path: Path) -> None:
    indexes = SegmentIndexes(tmp_path, 0, 1024, ".cleaned")
    assert tuple(index.suffix for index in indexes.files) == INDEXES
    indexes.add(4, 50, LargestTimestamp(7, 4))
    indexes.transactions.add(ABORTED)
    indexes.seal(STATE)
    assert suffixes(tmp_path) == {suffix[1:] + ".cleaned" for suffix in INDEXES}
    indexes.take_names(tmp_path)
    assert suffixes(tmp_path) == {suffix[1:] for suffix in INDEXES}
    again = SegmentIndexes(tmp_path, 0, 1024)
    assert again.load() == STATE
    assert again.transactions.entries() == [ABORTED]
    for index in again.files:
        other = SegmentIndexes(tmp_path, 0, 1024)
        kept = index.path.read_bytes()
        index.path.unlink()
        assert other.load() is None, "one that is missing makes all of them be rebuilt"
        index.path.write_bytes(kept)
    again.remove()
    assert suffixes(tmp_path) == set()


def test_a_segment_without_aborted_transactions_has_no_transaction_index(tmp_path: Path) -> None:
    indexes = SegmentIndexes(tmp_path, 0, 1024)
    indexes.add(4, 50, LargestTimestamp(7, 4))
    indexes.seal(STATE._replace(aborted=0))
    assert suffixes(tmp_path) == {"index", "timeindex"}
    assert SegmentIndexes(tmp_path, 0, 1024).load() == STATE._replace(aborted=0)
