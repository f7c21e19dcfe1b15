"""The metrics of `klamm load` as a file for node_exporter's textfile collector, since a run has no endpoint to
scrape.

The file is replaced as a whole after each run. Values that a run does not have are kept from the file: the last
success of a topic that failed, and topics that the run left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.core.errors import StorageError
from klamm.core.escaping import escaped

from .report import Status

if TYPE_CHECKING:
    from .report import RunReport

_TOPIC: Final = ("sink", "topic")
_SINK: Final = ("sink",)
METRICS: Final = {
    "klamm_load_run_failed": (_SINK, "1 if the last run failed, of one topic or of all."),
    "klamm_load_run_timestamp_seconds": (_SINK, "When the last run ended, seconds since the epoch."),
    "klamm_load_run_duration_seconds": (_SINK, "How long the last run took."),
    "klamm_load_failed": (_TOPIC, "1 if the last run could not load the topic."),
    "klamm_load_records": (_TOPIC, "Records that the last run loaded."),
    "klamm_load_lastsuccess_timestamp_seconds": (
        _TOPIC,
        "When a run last had everything of the topic loaded, seconds since the epoch; 0 if none ever had.",
    ),
}
"""The labels and the meaning of each gauge."""
_Values = dict[tuple[str, tuple[str, ...]], float]


class LoadMetrics:
    """The file of one sink. `clock` returns seconds since the epoch."""

    def __init__(self, path: Path, sink: str, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._sink = escaped(sink)
        self._clock = clock

    def write(self, report: RunReport) -> None:
        """Writes the outcome of a run. Raises `StorageError` if the file cannot be written."""
        values = self._run(failed=report.status is Status.FAILED, seconds=report.seconds)
        for topic in report.topics:
            labels = (self._sink, escaped(topic.topic))
            failed = topic.status is Status.FAILED
            values["klamm_load_failed", labels] = failed
            values["klamm_load_records", labels] = sum(load.rows for load in topic.loads)
            success = ("klamm_load_lastsuccess_timestamp_seconds", labels)
            if topic.status in (Status.LOADED, Status.EMPTY):
                values[success] = self._clock()
            else:
                values.setdefault(success, 0.0)
        self._replace(values)

    def write_failure(self, seconds: float) -> None:
        """Writes that a run failed before the first topic was started."""
        self._replace(self._run(failed=True, seconds=seconds))

    def _run(self, *, failed: bool, seconds: float) -> _Values:
        """Returns the values of the file, with those of the run in their place."""
        values = self._read()
        values["klamm_load_run_failed", (self._sink,)] = failed
        values["klamm_load_run_timestamp_seconds", (self._sink,)] = self._clock()
        values["klamm_load_run_duration_seconds", (self._sink,)] = seconds
        return values

    def _read(self) -> _Values:
        from prometheus_client.parser import text_string_to_metric_families

        try:
            text = self._path.read_text(encoding="utf-8")
            return {
                (sample.name, tuple(sample.labels[label] for label in METRICS[sample.name][0])): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
                if sample.name in METRICS
            }
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise StorageError(f"{self._path}: {error.strerror}") from error
        except (ValueError, KeyError) as error:
            raise StorageError(f"{self._path}: no file of metrics that klamm load has written: {error}") from error

    def _replace(self, values: _Values) -> None:
        from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

        registry = CollectorRegistry()
        gauges = {name: Gauge(name, doc, labels, registry=registry) for name, (labels, doc) in METRICS.items()}
        for (name, labels), value in values.items():
            gauges[name].labels(*labels).set(value)
        try:
            write_to_textfile(str(self._path), registry)
        except OSError as error:
            raise StorageError(f"{self._path}: {error.strerror}") from error
