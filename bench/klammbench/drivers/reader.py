"""A raw reader: fetches one partition over one socket and parses responses only as far as the next offset needs.

    python -m klammbench.drivers.reader READING

It runs in a process of its own, which prints its figures as JSON.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from datetime import timedelta

from klamm.core.protocol import messages
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.headers import request_frame
from klamm.core.records.header import iter_headers
from klammbench.paths import PYTHON, ROOT

_VERSION = 11
_FETCH_BYTES = 1 << 20
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Reading:
    """Reads partition 0 of `topic` from its beginning, for at most `seconds` and `max_bytes`. `again`: at the end,
    continue from the beginning.
    """

    bootstrap: str
    topic: str
    seconds: float
    max_bytes: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    bytes: int
    seconds: float
    cpu_s: float


def start(reading: Reading) -> subprocess.Popen[str]:
    """Starts a process that connects at once and begins to read at `go`. `outcome` waits for it."""
    command = [str(PYTHON), "-m", "klammbench.drivers.reader", json.dumps(asdict(reading))]
    pipe = subprocess.PIPE
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "bench")}
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)
    assert process.stdout is not None
    process.stdout.readline()  # an empty line means that it failed: `outcome` says why
    return process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def outcome(process: subprocess.Popen[str], timeout_s: float) -> Outcome:
    """Waits for the process to end and returns its figures. Raises `RuntimeError` with its last output if it failed."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise RuntimeError(f"the reader took more than {timeout_s:g} s") from None
    if process.returncode:
        raise RuntimeError(f"the reader failed: {err.strip()[-400:]}")
    return Outcome(**json.loads(out))


class Source:
    """A connection that fetches partition 0 of `topic`, at most `fetch_bytes` at a time and one fetch after the other.
    `isolation` is the protocol's: 0 is read_uncommitted, 1 read_committed.
    """

    def __init__(self, bootstrap: str, topic: str, isolation: int = 0, fetch_bytes: int = _FETCH_BYTES) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._topic, self._isolation, self._fetch_bytes = topic, isolation, fetch_bytes
        self._buffer = bytearray(2 * fetch_bytes)
        self._offset = 0
        self._socket = socket.create_connection((host, int(port)), _TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._socket.close()

    def read(self, seconds: float, max_bytes: int, *, again: bool) -> Outcome:
        """Reads on from where the last call has ended, as `Reading` says."""
        got = 0
        begin, cpu = time.perf_counter(), time.process_time()
        while got < max_bytes and time.perf_counter() - begin < seconds:
            self._socket.sendall(self._request())
            records = _records(_answer(self._socket, self._buffer), self._topic)
            after = self._offset
            for _, header in iter_headers(records):
                after = header.next_offset
            got += len(records)
            if after == self._offset:
                if not again:
                    break
                after = 0
            self._offset = after
        return Outcome(got, time.perf_counter() - begin, time.process_time() - cpu)

    def _request(self) -> bytes:
        schema = messages.request(ApiKey.FETCH, _VERSION)
        partition = schema.part(
            "FetchPartition", partition=0, fetch_offset=self._offset, partition_max_bytes=self._fetch_bytes
        )
        body = schema.build(
            replica_id=-1,
            max_wait=timedelta(milliseconds=100),
            min_bytes=1,
            max_bytes=self._fetch_bytes,
            isolation_level=self._isolation,
            topics=(schema.part("FetchTopic", topic=self._topic, partitions=(partition,)),),
            forgotten_topics_data=(),
            rack_id="",
        )
        return request_frame(ApiKey.FETCH, _VERSION, 1, "bench", schema.encode(body))


def read(reading: Reading) -> Outcome:
    source = Source(reading.bootstrap, reading.topic)
    print("connected", flush=True)
    sys.stdin.readline()
    try:
        return source.read(reading.seconds, reading.max_bytes, again=reading.again)
    finally:
        source.close()


def _answer(sock: socket.socket, buffer: bytearray) -> memoryview:
    """Returns one whole response frame, without its length prefix."""
    view, filled, size = memoryview(buffer), 0, 4
    while filled < size:
        count = sock.recv_into(view[filled:size] if filled >= 4 else view[filled:4])
        if not count:
            raise RuntimeError("the broker closed the connection")
        filled += count
        if filled == 4:
            size = 4 + struct.unpack_from(">I", buffer)[0]
            if size > len(buffer):
                raise RuntimeError(f"a response of {size} bytes, more than a fetch may bring")
    return view[4:size]


def _records(answer: memoryview, topic: str) -> memoryview:
    """Returns the record bytes of a Fetch response, version 11, with one topic and one partition."""
    (code,) = struct.unpack_from(">h", answer, 8)  # after correlation id and throttle time
    at = 8 + 2 + 4 + 4 + 2 + len(topic) + 4  # code, session, topics, the name, partitions
    _, error, _, _, _, aborted = struct.unpack_from(">ihqqqi", answer, at)
    if code or error:
        raise RuntimeError(f"the broker answered a fetch with the error {code or error}")
    at += 4 + 2 + 24 + 4 + 16 * max(aborted, 0) + 4  # the last is the preferred replica
    (size,) = struct.unpack_from(">i", answer, at)
    return answer[at + 4 : at + 4 + max(size, 0)]


if __name__ == "__main__":
    print(json.dumps(asdict(read(Reading(**json.loads(sys.argv[1]))))))
