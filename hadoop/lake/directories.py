"""Checks that apply to the files of any published directory, of a load or of a generation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from ..publishing.interface import LakeError, LakeUnavailableError
from .contents import NONE, FileRows, Longs, read_rows
from .files import LakeFiles
from .layout import BAD, INVALID, NO_VALUE, OWNER, SUCCESS, is_data
from .local_time import day_start
from .verification.findings import Bounds

_HOUR_US: Final = 3_600_000_000
_DAY_US: Final = 24 * _HOUR_US
_DIRECTORY: Final = re.compile(rf"dt=(\d{{4,}}-\d\d-\d\d|{INVALID})(?:/hr=(\d\d|{NO_VALUE}))?\Z")
_NAMED: Final = 3
"""The most examples in a message."""
T = TypeVar("T")
LocalTime = Callable[[FileRows], Longs]
"""The rows' timestamps as local times of their directories' time zone, in microseconds."""


def _utc(rows: FileRows) -> Longs:
    return rows.timestamp


@dataclass(frozen=True, slots=True)
class PublishedDirectory:
    """The directory `path` of a `what`, a load or a generation, whose manifest is the file `manifest`. `find` is called
    for each damage with its kind and a line.
    """

    files: LakeFiles
    path: str
    what: str
    manifest: str
    bounds: Bounds | None
    find: Callable[[str, str], None]

    def data_files(self, own: Iterable[str]) -> dict[str, int]:
        """Returns the directory's data files and their sizes. Reports any other file that is not among its `own` files
        as foreign.
        """
        there = dict(self.files.files(self.path))
        known = {*own, self.manifest, SUCCESS, OWNER}
        data = {}
        if SUCCESS not in there:
            self.find("files", f"{SUCCESS} is missing")
        for name, size in there.items():
            folder, _, last = name.rpartition("/")
            checked = last.removeprefix(".").removesuffix(".crc")
            if last == f".{checked}.crc":  # Hadoop's checksums on `file:`
                if f"{folder}/{checked}".lstrip("/") not in there:
                    self.find("files", f"{folder}/{checked} is missing: only its checksum {last} is there")
            elif is_data(name) and (folder == BAD or _DIRECTORY.match(folder)):
                data[name] = size
            elif name not in known:
                self.find("files", f"{name} does not belong to the {self.what}")
        return data

    def check_owner(self, job_id: str | None) -> None:
        """Checks the owner's file against the manifest's job; `job_id` is None if the manifest cannot be read."""
        found = self.files.read(f"{self.path}/{OWNER}")
        if found is None:
            self.find("files", f"{OWNER} is missing")
            return
        try:
            job = json.loads(found)["job_id"]
        except (ValueError, LookupError, TypeError):
            self.find("files", f"{OWNER} cannot be read")
            return
        if job_id is not None and job != job_id:
            self.find("history", f"{OWNER} is of job {job}, {self.manifest} of {job_id}")

    def rows(self, name: str, more: str | None, local: LocalTime = _utc) -> FileRows | None:
        """Returns a data file's rows, with the column `more`; None if it cannot be read. Reports rows in the directory
        of another day or hour, by the local times of `local`.
        """
        rows = self._readable(lambda: read_rows(self.files, f"{self.path}/{name}", more))
        if rows is not None:
            self._in_directory(name, name.rpartition("/")[0], rows, local)
        return rows

    def read(self, name: str, parse: Callable[[bytes], T], missing: str = "") -> T | None:
        """Returns a file of the directory as `parse` reads it; None if it is `missing`, or cannot be read."""

        def found() -> T | None:
            data = self.files.read(f"{self.path}/{name}")
            if data is None:
                self.find("files", missing or f"{name} is missing")
            return None if data is None else parse(data)

        return self._readable(found)

    def _readable(self, read: Callable[[], T]) -> T | None:
        """Returns what `read` returns; None, and a finding, if it raises `LakeError`."""
        try:
            return read()
        except LakeUnavailableError:
            raise
        except LakeError as error:
            self.find("files", str(error))
            return None

    def _in_directory(self, name: str, folder: str, rows: FileRows, local: LocalTime) -> None:
        match = _DIRECTORY.match(folder)
        if match is None:
            return  # rows that were set aside have no day
        day, hour = match.groups()
        there = rows.timestamp != NONE
        if day == INVALID:
            valid = np.zeros(rows.number, np.bool_)
            if self.bounds is not None:
                valid = there & (rows.timestamp >= self.bounds.min_us) & (rows.timestamp <= self.bounds.max_us)
            wrong = np.ones(rows.number, np.bool_) if hour not in (None, NO_VALUE) else valid
        else:
            start, length = _directory_span(day, hour)
            shown = local(rows)
            wrong = ~(there & (shown >= start) & (shown < start + length))
        if wrong.any():
            named = examples(rows.partition[wrong], rows.offset[wrong])
            self.find("files", f"{name}: {int(wrong.sum())} rows have a timestamp of another directory: {named}")


def _directory_span(day: str, hour: str | None) -> tuple[int, int]:
    """Returns the beginning and length of a directory's time span, in microseconds of local time. A day that does not
    exist has length 0.
    """
    start = day_start(day)
    if start is None:
        return 0, 0
    if hour is None:
        return start, _DAY_US
    if hour == NO_VALUE:
        return start, 0
    return start + int(hour) * _HOUR_US, _HOUR_US


def absent(present: Iterable[int], last: int) -> Iterator[tuple[int, int]]:
    """Yields the missing numbers from 1 to `last`, as runs (first, last): a stray number may be as large as a time in
    seconds.
    """
    before = 0
    for number in [*sorted(n for n in present if n <= last), last + 1]:
        if number > before + 1:
            yield before + 1, number - 1
        before = number


def examples(partitions: Longs, offsets: Longs) -> str:
    """Returns a text such as `0:15, 0:16, 1:3, …`."""

    def text(number: int) -> str:
        return "null" if number == NONE else str(number)

    shown = [f"{text(int(p))}:{text(int(o))}" for p, o in zip(partitions[:_NAMED], offsets[:_NAMED], strict=True)]
    return ", ".join(shown) + (", …" if len(offsets) > _NAMED else "")
