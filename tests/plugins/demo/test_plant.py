from __future__ import annotations

from pathlib import Path

import pytest

from klamm.core.records.encode import encode_batch
from klamm.core.records.header import BatchHeader, crc_matches, iter_headers
from klamm.plugins.demo.processes import DemoError
from klamm.plugins.demo.steps.plant import hide_last_batch


def test_the_lost_batch_is_there_and_no_reader_sees_it(tmp_path: Path) -> None:
    segment = tmp_path / "00000000000000000000.log"
    batches = [encode_batch([(1, b"k", b"v", ())], base_offset=n) for n in range(2)]
    segment.write_bytes(b"".join(batches))
    hide_last_batch(segment)
    data = segment.read_bytes()
    headers = list(iter_headers(data))
    assert [header.is_control for _, header in headers] == [False, True]
    assert all(crc_matches(data, at, header) for at, header in headers)
    assert data[: len(batches[0])] == batches[0]
    assert BatchHeader.parse(data, len(batches[0])).base_offset == 1


def test_an_empty_segment_cannot_lose_anything(tmp_path: Path) -> None:
    segment = tmp_path / "00000000000000000000.log"
    segment.write_bytes(b"")
    with pytest.raises(DemoError, match="holds no batch"):
        hide_last_batch(segment)
