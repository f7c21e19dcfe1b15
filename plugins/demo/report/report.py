"""The report of a run: one HTML file with the course of the run, the lake's loads, and the audit by day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ...audit.query import Answer
from ...audit.web.document import DocumentSection, audit_sections, document, section, write_document
from ...audit.web.templates import environment
from ...audit.web.views import Filters
from ...audit.windows import Span
from ..steps.load import Published
from ..verdict import Verdict
from .picture import draw, rates
from .timeline import Timeline


@dataclass(frozen=True)
class Report:
    """The data of a run for the report. `planted`: the anomaly, in words; empty without one."""

    verdict: Verdict
    timeline: Timeline
    loads: Sequence[Published]
    lake: str
    answer: Answer
    planted: str = ""

    def html(self) -> str:
        seconds = self.verdict.seconds
        timeline = self.timeline
        samples, marks, phases = timeline.samples, timeline.marks, timeline.phases
        step_s, shown = rates(samples, seconds)
        happened = {
            "picture": draw(samples, marks, phases, seconds),
            "marks": marks,
            "phases": phases,
            "rates": shown,
            "step_s": step_s,
        }
        sections = [
            _section("run", "The run", {"verdict": self.verdict, "planted": self.planted}),
            _section("timeline", "What happened when", happened),
            _section("lake", "The loads of the lake", {"loads": self.loads, "lake": self.lake}),
            *audit_sections(self.answer, Filters(by=Span.DAY)),
        ]
        return document("A run of the demo", sections, self.answer.now_ms, _text("report.css"))

    def write(self, path: Path) -> None:
        """Writes the report. Raises `ConfigError` if it cannot be written."""
        write_document(path, self.html())


def _section(name: str, title: str, values: dict[str, Any]) -> DocumentSection:
    return section(name, title, environment().from_string(_text(f"{name}.html")), values)


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text()
