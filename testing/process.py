"""The process of a `KlammBroker`: one broker, and a thread that carries out the commands of the test.

`python -m klamm.testing.process`, with lines of JSON on both pipes. The first line of standard input names the file and
the entries of `sys.path`; each further one is a command (`do`) with its arguments. Each is answered by one line: `ok`
with the result, or `error` with one line of text. The process ends at once when standard input ends, and stops cleanly
at SIGTERM.
"""

from __future__ import annotations

import asyncio
import base64
import faulthandler
import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Final

if TYPE_CHECKING:
    from klamm.core.broker.server import Broker
    from klamm.core.client.cluster_client import ClusterClient
    from klamm.core.config.settings import Settings
    from klamm.testing.faults import Faults

__all__ = ["main"]

_SWITCH_S: Final = 0.0005
"""As `klamm broker` sets it."""


class Commands:
    """The commands of a test, by name. Used by one thread."""

    def __init__(self, settings: Settings, config: str, client: ClusterClient, faults: Faults) -> None:
        self._settings = settings
        self._config = config
        self._client = client
        self._faults = faults
        self._by_name: dict[str, Callable[..., Any]] = {
            "create_topics": self._create_topics,
            "delete_topic": lambda name: self._client.delete_topics([name]),
            "topics": self._topics,
            "send": self._send,
            "records": self._records,
            "committed": self._committed,
            "reset": self._reset,
            "fault": self._fault,
            "faults": self._faults.lines,
            "clear_faults": self._faults.clear,
        }

    def __call__(self, do: str, **arguments: Any) -> Any:
        return self._by_name[do](**arguments)

    def _create_topics(self, names: Sequence[str], *, exists_ok: bool = True) -> None:
        """Creates the topics as the file describes them now."""
        from klamm.core.client.cluster_client import NewTopic
        from klamm.core.config.settings import load_settings

        if not names:
            return
        settings = load_settings(self._config)
        sections = settings.topics
        for name in names:
            if sections[name].schema_file is not None:
                settings.check_topic(name)
        self._client.create_topics(
            {
                name: NewTopic(sections[name].partitions or -1, sections[name].replication_factor or -1,
                               sections[name].config)
                for name in names
            },
            exists_ok=exists_ok,
        )  # fmt: skip

    def _topics(self) -> dict[str, int]:
        topics = self._client.metadata().topics
        return {name: len(topic.partitions) for name, topic in sorted(topics.items()) if not name.startswith("_")}

    def _send(
        self, topic: str, partition: int, key: str | None, value: str | None, headers: Iterable[tuple[str, str | None]],
        timestamp_ms: int,
    ) -> int:  # fmt: skip
        from klamm.core.records.encode import encode_batch
        from klamm.core.records.partition import TopicPartition

        tp = TopicPartition(topic, partition)
        record = (timestamp_ms, _bytes(key), _bytes(value), tuple((name, _bytes(data)) for name, data in headers))
        return self._client.produce({tp: encode_batch([record])})[tp].base_offset

    def _records(self, topic: str) -> list[Any]:
        from klamm.core.client.cluster_client import EARLIEST, LATEST
        from klamm.core.client.errors import UnknownTopicError
        from klamm.core.client.reader.range_reader import OffsetRange, RangeReader
        from klamm.core.records.partition import TopicPartition

        found = self._client.metadata([topic]).topics.get(topic)
        if found is None:
            raise UnknownTopicError(f"topic {topic!r} does not exist")
        places = [TopicPartition(topic, number) for number in sorted(found.partitions)]
        starts = self._client.list_offsets(dict.fromkeys(places, EARLIEST))
        ends = self._client.list_offsets(dict.fromkeys(places, LATEST))
        rows: list[Any] = []
        for tp in places:
            wanted = OffsetRange(tp, starts[tp][0], ends[tp][0])
            if not wanted.size:
                continue
            reader = RangeReader(self._client, wanted, fail_on_data_loss=False, poll_timeout_s=30.0)
            for batch in reader.batches():
                c = batch.columns
                for offset, at, key, value, headers in zip(
                    c.offsets, c.timestamps_ms, c.keys, c.values, c.headers, strict=True
                ):
                    named = [(name, _text(data)) for name, data in headers]
                    rows.append((tp.partition, offset, at, _text(key), _text(value), named))
        return rows

    def _committed(self, group: str) -> list[tuple[str, int, int]]:
        committed = self._client.fetch_offsets(group)
        return [
            (tp.topic, tp.partition, offset) for tp, offset in sorted((tp, c.offset) for tp, c in committed.items())
        ]

    def _reset(self, names: Sequence[str]) -> None:
        from klamm.core.errors import BrokerError, ErrorCode
        from klamm.core.interfaces.coordination import NoNodeError
        from klamm.core.protocol.apis import ApiKey

        self._faults.clear()
        client = self._client
        there = [name for name in client.metadata().topics if not name.startswith("__")]
        if there:
            client.delete_topics(there, missing_ok=True)
        for node_id in client.metadata(()).nodes:
            for found in client.call(ApiKey.LIST_GROUPS, node_id, states_filter=(), types_filter=()).groups:
                try:
                    client.delete_group(found.group_id)
                except BrokerError as error:  # one with members keeps them; its offsets were deleted with the topics
                    if error.code not in (ErrorCode.non_empty_group, ErrorCode.group_id_not_found):
                        raise
        if "_schemas" in there:
            coordination = self._settings.make_coordination()
            coordination.start()
            try:
                coordination.delete("/schemas", recursive=True)
            except NoNodeError:  # nothing was registered
                pass
            finally:
                coordination.close()
        self._create_topics(names)

    def _fault(
        self, api: str, kind: str, times: int | None, error: str = "", seconds: float = 0.0, carried_out: bool = False
    ) -> None:
        from klamm.testing.faults import Fault, api_named, error_named

        code = error_named(error) if kind == "fail" else None
        if kind == "delay" and not seconds > 0:
            raise ValueError(f"a delay of {seconds} s: should be above 0")
        self._faults.add(Fault(api_named(api), times, code, seconds, carried_out))


def main() -> None:
    faulthandler.register(signal.SIGUSR1, chain=True)  # the default action then ends the process
    commands, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a plugin prints goes into the log
    first = json.loads(commands.readline())
    sys.path.extend(entry for entry in first["path"] if entry not in sys.path)
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type] # kio imports it where it is installed: 0.2 s
    from klamm.core.garbage import no_collections

    with no_collections():
        from klamm.core.config.settings import load_settings
        from klamm.core.errors import KlammError
    try:
        settings = load_settings(first["config"])
        _run(_serve(settings, first["config"], commands, answers))
    except (KlammError, OSError) as error:
        _answer(answers, {"error": f"the broker does not start: {error}"})
        sys.exit(1)


def _run(serving: Any) -> None:
    """Runs on uvloop if it is installed, as `klamm broker` does."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(serving)
    else:
        uvloop.run(serving)


async def _serve(settings: Settings, config: str, commands: BinaryIO, answers: BinaryIO) -> None:
    from klamm.core.garbage import no_collections

    with no_collections():
        from klamm.core.broker.server import Broker
        from klamm.core.broker.signals import Signals
        from klamm.core.process_log import ProcessLog
        from klamm.testing.faults import Faults, FaultyDispatch
    signals, faults = Signals(), Faults()
    broker = Broker(
        settings, ProcessLog(settings.log), around_dispatch=lambda dispatch: FaultyDispatch(faults, dispatch)
    )
    try:
        await broker.start()
        gc.freeze()
        sys.setswitchinterval(_SWITCH_S)
        control = threading.Thread(
            target=_control, args=(settings, config, broker, faults, commands, answers), name="control", daemon=True
        )
        control.start()
        ends: list[asyncio.Future[Any]] = [signals.stopped, broker.failed]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await broker.stop()


def _control(
    settings: Settings, config: str, broker: Broker, faults: Faults, commands: BinaryIO, answers: BinaryIO
) -> None:
    """Carries out the commands until the input ends; then the process ends, since nothing uses the broker any more."""
    from klamm.core.client.factory import open_client

    bootstrap = f"127.0.0.1:{broker.advertised[0].port}"
    with open_client(settings, "testing", bootstrap_servers=bootstrap) as client:
        carry_out = Commands(settings, config, client, faults)
        _answer(answers, {"ok": None})
        for line in commands:
            try:
                answer = {"ok": carry_out(**json.loads(line))}
            except Exception as error:  # told to the test, whatever it is
                answer = {"error": str(error) or type(error).__name__}
            _answer(answers, answer)
    os._exit(0)


def _answer(answers: BinaryIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


if __name__ == "__main__":
    main()
