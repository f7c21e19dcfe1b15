"""The data source `held`: `klamm`, whose sink waits at a place until a file exists, so that attempts overlap.

Options beside those of `klamm`: `held.folder`, where an attempt that waits creates `waiting-<pid>`, goes on when `go`
exists, and creates `ended-<pid>` at its end; a further attempt of task 0 creates `again` there. `held.at`: `row`
(before its first row) or a fault point of the sink; `held.nth`, at which pass of the point; `held.first` true: only the
first attempt of task 0 waits; `held.plant` true: each attempt has a producer of its own.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from klamm.core import faults
from klamm.hadoop.source import KlammDataSource
from klamm.hadoop.spark.claims import TaskIdentity, TaskProducer

LONGEST_S = 300.0
PREFIX = "held."


@dataclass(frozen=True)
class Hold:
    """Where attempts wait."""

    folder: str = ""
    at: str = "row"
    nth: int = 1
    first: bool = False
    plant: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Hold:
        given = {key[len(PREFIX) :]: value for key, value in options.items() if key.startswith(PREFIX)}
        first, plant = (given.get(name) == "true" for name in ("first", "plant"))
        return cls(given.get("folder", ""), given.get("at", "row"), int(given.get("nth", "1")), first, plant)

    def attempt(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Installs the waiting for this attempt; yields its rows."""
        faults.install(None)
        context = TaskContext.get()
        if self.plant:
            own_producers()
        waits = bool(self.folder) and context is not None
        if self.first and context is not None:
            waits = waits and context.attemptNumber() == 0 and context.partitionId() == 0
        if waits and self.at != "row":
            faults.install(self._hook())
        if self.folder and context is not None and context.partitionId() == 0 and context.attemptNumber():
            (Path(self.folder) / "again").touch()
        for number, batch in enumerate(rows):
            if waits and self.at == "row" and number == 0:
                self.wait()
            yield batch

    def ended(self) -> None:
        """Creates `ended-<pid>` if this attempt has waited."""
        if self.folder and (Path(self.folder) / f"waiting-{os.getpid()}").exists():
            (Path(self.folder) / f"ended-{os.getpid()}").touch()

    def _hook(self) -> faults.FaultHook:
        passed = 0

        def hook(name: str) -> None:
            nonlocal passed
            passed += name == self.at
            if name == self.at and passed == self.nth:
                self.wait()

        return hook

    def wait(self) -> None:
        folder = Path(self.folder)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the kernel sends it to a stopped worker whose executor is killed
        (folder / f"waiting-{os.getpid()}").touch()
        deadline = time.monotonic() + LONGEST_S
        while not (folder / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.01)


def own_producers() -> None:
    """Plants that each attempt has a producer of its own, as one of `init_producer_id`."""
    producer = TaskIdentity.producer
    number = int.from_bytes(os.urandom(4), "big") << 16

    def own(self: TaskIdentity, topic: str, topic_id: UUID | None) -> TaskProducer:
        found = producer(self, topic, topic_id)
        return replace(found, producer_id=found.producer_id ^ number)

    TaskIdentity.producer = own  # type: ignore[method-assign]


class HeldWriter(DataSourceArrowWriter):
    def __init__(self, inner: Any, hold: Hold) -> None:
        self._inner, self._hold = inner, hold

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        try:
            message: WriterCommitMessage = self._inner.write(self._hold.attempt(iterator))
        finally:
            self._hold.ended()
        return message

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._inner.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._inner.abort(messages)


class HeldStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, inner: Any, hold: Hold) -> None:
        self._inner, self._hold = inner, hold

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        try:
            message: WriterCommitMessage = self._inner.write(self._hold.attempt(iterator))
        finally:
            self._hold.ended()
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._inner.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._inner.abort(messages, batchId)


class HeldDataSource(KlammDataSource):
    def __init__(self, options: Any) -> None:
        self._hold = Hold.of(options)
        super().__init__(type(options)({k: v for k, v in options.items() if not k.lower().startswith(PREFIX)}))

    @classmethod
    def name(cls) -> str:
        return "held"

    def writer(self, schema: StructType, overwrite: bool) -> HeldWriter:
        return HeldWriter(super().writer(schema, overwrite), self._hold)

    def streamWriter(self, schema: StructType, overwrite: bool) -> HeldStreamWriter:
        return HeldStreamWriter(super().streamWriter(schema, overwrite), self._hold)
