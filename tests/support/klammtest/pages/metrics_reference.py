"""The table of `docs/metrics.md`, made from the definitions so that the two agree."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from klamm.core.broker.metrics.definitions import DEFINITIONS, PROCESS, MetricSpec

BEGIN = "<!-- The table from here on is made by klammtest.pages.metrics_reference; a test compares. -->"


def reference() -> str:
    """Returns Markdown with a row for each metric."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield BEGIN
    yield "\n| Metric | Type | Labels | | Kafka's MBean |\n| --- | --- | --- | --- | --- |"
    for definition in DEFINITIONS:
        yield _row(definition.shown, definition)
    for definition in PROCESS:
        yield _row(definition.shown.removeprefix("klamm_"), definition)


def _row(name: str, definition: MetricSpec) -> str:
    labels = ", ".join(f"`{label}`" for label in definition.labels)
    kafka = f"`{definition.kafka}`" if definition.kafka else ""
    return f"| `{name}` | {definition.kind.value} | {labels} | {definition.doc} | {kafka} |"


def main(page: Path) -> None:
    """Replaces the table on the page."""
    head = page.read_text(encoding="utf-8").partition(BEGIN)[0]
    page.write_text(head + reference(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
