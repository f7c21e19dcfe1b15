"""Runs the raw driver from Python: makes the Produce frames, compiles and runs raw.c, and returns its figures.

The frames are made by Klamm's own encoder and are the same bytes for every broker.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path

from klamm.core.config.settings import load_settings
from klamm.core.protocol import messages
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.headers import request_frame
from klamm.core.records.encode import encode_batch
from klammbench.paths import BUILT

_VERSION = 9
_TIMESTAMP_MS = int(time.time() // 86_400) * 86_400_000
"""Midnight of today: recent enough that retention deletes none of these records."""
_SOURCE = Path(__file__).with_name("raw.c")
_TIMEOUT_S = 90.0


@dataclass(frozen=True, slots=True)
class Batch:
    """The content of one Produce request: `messages` of `message_bytes` each, in one batch of one partition."""

    messages: int
    message_bytes: int = 100
    codec: str = "none"
    prefix: bytes = b""
    """Before each message's text, beside its `message_bytes`."""

    @classmethod
    def of_size(cls, batch_bytes: int, message_bytes: int = 100, codec: str = "none") -> Batch:
        """Returns a batch with as many messages as fill that size before compression, as `batch.size` counts it."""
        return cls(max(1, (batch_bytes - 61) // (message_bytes + _overhead(message_bytes))), message_bytes, codec)


@dataclass(frozen=True, slots=True)
class Load:
    """`depth` requests in flight on each connection; `rate` > 0 sends that many requests per second in an open loop.
    Times are in seconds.
    """

    connections: int
    depth: int = 1
    warm_s: float = 0.3
    measure_s: float = 1.5
    max_bytes: float = 2e9
    rate: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The driver's figures. `bytes` counts the frames acknowledged in the measured `seconds`; `all_bytes` includes the
    warm-up.
    """

    requests: int
    bytes: int
    all_bytes: int
    seconds: float
    warm_end: float
    end: float
    cpu_s: float
    p50_us: float
    p99_us: float
    p999_us: float
    late_p99_us: float
    """The driver's own delay in an open loop; the latencies include it."""
    realtime: int


def drive(
    bootstrap: str,
    topic: str,
    partitions: int | Sequence[int],
    batch: Batch,
    load: Load,
    acks: int = 1,
    before: Callable[[], None] = lambda: None,
) -> Outcome:
    """Runs the driver once over all partitions in turn, or over the given ones (one given twice is used twice).

    `before` is called when all frames are made. Raises `RuntimeError` with the driver's own line if it fails.
    """
    return drive_each(topic, {bootstrap: partitions}, batch, load, acks, before)


def drive_each(
    topic: str,
    led: Mapping[str, int | Sequence[int]],
    batch: Batch,
    load: Load,
    acks: int = 1,
    before: Callable[[], None] = lambda: None,
) -> Outcome:
    """Runs the driver once over the brokers of a cluster: `led` has the partitions that each leads, by its HOST:PORT.
    The connections go to the brokers in turn.
    """
    files = [
        write_frames(topic, partitions, batch, acks, broker=place) for place, partitions in enumerate(led.values())
    ]
    try:
        numbers = (load.connections, load.depth, load.warm_s, load.measure_s, load.max_bytes, load.rate)
        ports = ",".join(bootstrap.rpartition(":")[2] for bootstrap in led)
        command = [str(compiled()), ports, ",".join(map(str, files)), *map(str, numbers)]
        before()
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"not all requests were answered within {_TIMEOUT_S:g} s") from None
    finally:
        for frames in files:
            frames.unlink()
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or f"the raw driver ended with status {done.returncode}")
    return Outcome(**json.loads(done.stdout))


def write_frames(topic: str, partitions: int | Sequence[int], batch: Batch, acks: int, broker: int = 0) -> Path:
    """Writes a file with one Produce frame for each partition, or for each of the given ones. `broker` keeps the files
    of several brokers apart.
    """
    BUILT.mkdir(parents=True, exist_ok=True)
    path = BUILT / f"{topic}-{os.getpid()}-{broker}.frames"  # another process may have a topic of this name
    records = encoded(batch)
    with path.open("wb") as file:
        for partition in range(partitions) if isinstance(partitions, int) else partitions:
            file.write(produce_frame(topic, partition, records, acks, correlation_id=partition + 1))
    return path


def produce_frame(topic: str, partition: int, records: bytes, acks: int, correlation_id: int) -> bytes:
    schema = messages.request(ApiKey.PRODUCE, _VERSION)
    data = schema.part("PartitionProduceData", index=partition, records=records)
    topic_data = schema.part("TopicProduceData", name=topic, partition_data=(data,))
    body = schema.encode(
        schema.build(transactional_id=None, acks=acks, timeout=timedelta(seconds=30), topic_data=(topic_data,))
    )
    return request_frame(ApiKey.PRODUCE, _VERSION, correlation_id, "bench", body)


@lru_cache(maxsize=4)
def encoded(batch: Batch) -> bytes:
    """Returns the encoded record batch. Its values are made of words, so that codecs can compress them."""
    codec = load_settings({}).codec_table().by_name(batch.codec) if batch.codec != "none" else None
    values = some_values(batch.message_bytes, min(batch.messages, 2000))
    return encode_batch(
        [(_TIMESTAMP_MS + n // 10, None, batch.prefix + values[n % len(values)], ()) for n in range(batch.messages)],
        codec=codec,
    )


def some_values(size: int, count: int, seed: int = 7) -> Sequence[bytes]:
    """Returns `count` different texts of `size` bytes, the same in every run; zstd nearly halves them."""
    chance = random.Random(seed)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(3, 9))) for _ in range(2000)]
    out = []
    for _ in range(count):
        text = ""
        while len(text) < size:
            text += f"{chance.choice(words)}={chance.randrange(1_000_000)} "
        out.append(text[:size].encode())
    return out


@lru_cache(maxsize=1)
def compiled() -> Path:
    """Compiles raw.c into var/, once for each hash of its text, and returns the program. Raises `RuntimeError` without
    a compiler.
    """
    built = BUILT / f"raw-{hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]}"
    if not built.exists():
        gcc = shutil.which("gcc") or shutil.which("cc")
        if gcc is None:
            raise RuntimeError("no C compiler for the raw driver: install the system package gcc")
        BUILT.mkdir(parents=True, exist_ok=True)
        part = built.with_suffix(".part")
        subprocess.run([gcc, "-O2", "-o", str(part), str(_SOURCE)], check=True)
        part.rename(built)
    return built


def _overhead(message_bytes: int) -> int:
    """Returns the bytes that a record without key and headers adds to its value (length, attributes, deltas, sizes), as
    for most records of a batch.
    """
    return 9 if message_bytes < 8000 else 11
