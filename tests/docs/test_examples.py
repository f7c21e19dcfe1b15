"""Every example of the README and of the pages named here runs, as a reader would run it."""

from __future__ import annotations

from pathlib import Path

import pytest

from klammtest.pages.documents import Reader
from klammtest.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "README.md",
    "docs/audit.md",
    "docs/consumer.md",
    "docs/coordination.md",
    "docs/load.md",
    "docs/offsets.md",
    "docs/operations.md",
    "docs/plugins.md",
    "docs/producer.md",
    "docs/schemas.md",
    "docs/spark.md",
]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.timeout(900)
def test_the_examples_of_a_page_run(page: str, tmp_path: Path) -> None:
    reader = Reader(tmp_path, {"9092": str(free_port()), "2181": str(free_port())})
    try:
        assert reader.follow(ROOT / page) > 0
    finally:
        reader.close()
