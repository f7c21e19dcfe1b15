"""`make clients`: four foreign clients against a broker started with the file of `klamm init`.

Each client produces RECORDS records with no codec and with each codec, and consumes them back twice: assigned by hand
and as a group. Values and order are checked, and the codec bits of the stored batches are the codec asked for.
Prints a line `client NAME codec C produced N consumed N ok|FAIL` each; exit 1 on any FAIL.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from klamm.core.records.header import iter_headers
from klammtest.brokers.initialised import InitialisedBroker
from klammtest.clients.foreign import CLIENTS, CODECS, ForeignClient

CODEC_IDS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def stored_codecs(log_dir: Path, topic: str) -> set[int]:
    """The codec bits of every batch that the topic's only partition has on disk."""
    segments = sorted((log_dir / f"{topic}-0").glob("*.log"))
    return {header.codec_id for segment in segments for _, header in iter_headers(segment.read_bytes())}


def run_cell(client: ForeignClient, codec: str, broker: InitialisedBroker, records: int) -> bool:
    topic = f"{client.name}-{codec}"
    broker.create_topic(topic)
    # Repeats itself, so that even a batch of one gets smaller: kafka-python stores what does not as it is.
    tail = b" again" * 12
    values = [b"%s %s %08d%s" % (client.name.encode(), codec.encode(), i, tail) for i in range(records)]
    produced = consumed = 0
    problem = ""
    try:
        client.produce(broker.bootstrap, topic, codec, values)
        produced = len(values)
        for group in (None, f"g-{topic}"):
            got = client.consume(broker.bootstrap, topic, records, group, 90.0)
            consumed = len(got) if not consumed else min(consumed, len(got))
            if [v for _, v in got] != values:
                problem = f"values or order differ ({'by hand' if group is None else 'as a group'})"
            elif [o for o, _ in got] != list(range(records)):
                problem = "offsets differ"
        bits = stored_codecs(broker.log_dir, topic)
        if bits != {CODEC_IDS[codec]}:
            problem = f"stored with codec bits {sorted(bits)}, asked for {CODEC_IDS[codec]}"
    except (Exception, AssertionError) as error:  # a client's own error is this cell's result
        problem = f"{type(error).__name__}: {error}"
    verdict = "ok" if not problem else "FAIL"
    print(f"client {client.name} codec {codec} produced {produced} consumed {consumed} {verdict}", flush=True)
    if problem:
        print(f"  {problem}", file=sys.stderr, flush=True)
    return not problem


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(CLIENTS), action="append")
    parser.add_argument("--codecs", default=",".join(CODECS))
    parser.add_argument("--records", type=int, default=100_000)
    arguments = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="klamm-clients-") as folder, InitialisedBroker(Path(folder)) as broker:
        for name in arguments.only or CLIENTS:
            for codec in arguments.codecs.split(","):
                failed += not run_cell(CLIENTS[name], codec, broker, arguments.records)
    return 1 if failed else 0


if __name__ == "__main__":
    started = time.monotonic()
    status = main()
    print(f"clients: {'ok' if status == 0 else 'FAIL'} in {time.monotonic() - started:.0f} s", flush=True)
    sys.exit(status)
