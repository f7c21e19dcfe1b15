"""The progress of a Spark job by Spark's own status tracker: finished tasks of all known tasks."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars


class Progress:
    """Shows no progress."""

    @contextmanager
    def watch(self, session: SparkSession, what: str) -> Iterator[None]:
        """Shows the progress of `what`, in this thread's Spark jobs, while the block runs."""
        del session, what
        yield


class BarProgress(Progress):
    """Shows a bar on the console for each step. Spark reports a stage's tasks once it has planned the stage."""

    def __init__(self, console: Console, interval_s: float = 0.2) -> None:
        self._console = console
        self._interval_s = interval_s

    @contextmanager
    def watch(self, session: SparkSession, what: str) -> Iterator[None]:
        group, context, done = f"klamm-{uuid.uuid4().hex}", session.sparkContext, threading.Event()
        context.setJobGroup(group, what)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("tasks"),
            TimeElapsedColumn(),
        )
        with Bars(*columns, console=self._console, transient=True) as bars:
            bar = bars.add_task(what, total=None)

            def follow() -> None:
                while not done.wait(self._interval_s):
                    _advance(session, group, bars, bar)

            thread = threading.Thread(target=follow, name="spark-progress", daemon=True)
            thread.start()
            try:
                yield
            finally:
                done.set()
                thread.join()
                context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # None unsets it


def _advance(session: SparkSession, group: str, bars: Bars, bar: TaskID) -> None:
    tracker = session.sparkContext.statusTracker()
    completed = total = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info else ():
            found = tracker.getStageInfo(stage)
            if found:
                completed += found.numCompletedTasks
                total += found.numTasks
    if total:
        bars.update(bar, completed=completed, total=total)
