"""Stores results: one file of JSON lines per shape, so that pieces of a run merge into one report.

The first line describes the run (date, commit, rounds, versions); each further one is a measurement. Running a shape
again overwrites its file; quick and full runs are stored apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class ShapeResults:
    about: Mapping[str, Any]
    rows: list[Mapping[str, Any]] = field(default_factory=list)


class Store:
    def __init__(self, folder: Path, *, quick: bool) -> None:
        self._folder = folder / ("quick" if quick else "full")

    def begin(self, shape: str, about: Mapping[str, Any]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._path(shape).write_text(json.dumps(about) + "\n")

    def add(self, shape: str, row: Mapping[str, Any]) -> None:
        with self._path(shape).open("a") as file:
            file.write(json.dumps(row) + "\n")

    def finish(self, shape: str, seconds: float) -> None:
        """Writes the last row; a shape whose run was interrupted has none."""
        self.add(shape, {"finished_in_s": round(seconds, 1)})

    def load(self, shape: str) -> ShapeResults | None:
        """Returns None if the shape has not been run."""
        try:
            lines = self._path(shape).read_text().splitlines()
        except FileNotFoundError:
            return None
        about, rows = json.loads(lines[0]), [json.loads(line) for line in lines[1:]]
        ends = [row["finished_in_s"] for row in rows if "finished_in_s" in row]
        return ShapeResults(
            {**about, "finished_in_s": ends[-1] if ends else None}, [row for row in rows if "cell" in row]
        )

    def _path(self, shape: str) -> Path:
        return self._folder / f"{shape}.jsonl"
