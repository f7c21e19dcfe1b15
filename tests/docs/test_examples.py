"""Every example of the README and of the pages named here runs, as a reader would run it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from klammtest.pages.documents import Reader, examples
from klammtest.ports import free_port, free_ports_in_a_row

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "README.md",
    "docs/audit.md",
    "docs/cli.md",
    "docs/cluster.md",
    "docs/consumer.md",
    "docs/coordination.md",
    "docs/load.md",
    "docs/mirror.md",
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
    first = free_ports_in_a_row(4)
    brokers = {str(9092 + n): str(first + n) for n in range(4)}
    reader = Reader(tmp_path, {**brokers, "2181": str(free_port())})
    try:
        assert reader.follow(ROOT / page) > 0
    finally:
        reader.close()


def test_the_clusters_file_is_the_example() -> None:
    (shown,) = (e.text for e in examples(ROOT / "docs" / "cluster.md") if e.options.get("title") == "klamm.yaml")
    assert yaml.safe_load(shown) == yaml.safe_load((ROOT / "examples" / "cluster.yaml").read_text())
