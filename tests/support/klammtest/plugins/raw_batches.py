"""A sink that takes whole record batches and appends them to one file per partition. Loaded by `plugins.modules`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from klamm.plugin import BatchSink, ConfigPath, Provider, RecordBatch, Section, hookimpl, key


class RawConfig(Section):
    path: ConfigPath = key(..., "The folder.")


class RawSink:
    """Appends the batches of TOPIC-PARTITION, one after the other, to the file of that name."""

    def __init__(self, config: RawConfig) -> None:
        self._folder = config.path
        self._waiting: list[RecordBatch] = []

    def open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)

    def write_batches(self, batches: Sequence[RecordBatch]) -> None:
        self._waiting += batches

    def flush(self) -> None:
        for batch in self._waiting:
            with (self._folder / str(batch.partition)).open("ab") as file:
                file.write(batch.data)
        self._waiting.clear()

    def close(self) -> None:
        self._waiting.clear()


@hookimpl
def klamm_sinks() -> Iterable[Provider[[], BatchSink]]:
    return [Provider("raw", RawSink, RawConfig, "record batches as they are stored")]
