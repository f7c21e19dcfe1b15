"""What real clients sent, mutated: bits, bytes, pieces left out, doubled, of another request; lengths that lie."""

from __future__ import annotations

import random
import struct
import time
from pathlib import Path

from bombard import Bombardment
from harness import Result, Run
from klammtest.broker import RunningBroker, free_port, running_broker
from recorded import Recorder, use_clients

FULL, QUICK = 1_000_000, 500
LIMIT_S = 800.0
ODD = (b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0" * 4, b"\xff" * 10, b"\x80" * 10, b"\xff\xff", b"\x7f\xff")


class FuzzCaptures:
    name = "fuzz-captures"
    injects = (
        "mutated requests of confluent-kafka and kafka-python (producers with each codec, groups, admin), recorded at "
        "the start, over sockets"
    )
    asserts = "each is answered or closes its connection; the log has refusals only; the broker's memory is bounded"
    plants = "the log says that an unexpected error closed a connection"
    tools = ()

    def run(self, run: Run) -> Result:
        wanted = QUICK if run.quick else FULL
        result = Result(wanted=wanted)
        began = time.monotonic()
        captures = _record(run.folder / "recorded")
        result.figures["captures"] = len(captures)
        # Small frames and few topics: what is fuzzed is the reading, not how many topics a disk holds.
        limits = {"socket.request.max.bytes": 1 << 20, "connections.max.idle.ms": 60_000}
        with running_broker(run.folder / "target", topics={"control": {"partitions": 1}}, broker=limits) as broker:
            aimed = Bombardment(broker, result)
            for number, chance in run.injections(QUICK, FULL):
                aimed.send(number, mutated(captures, chance))
                if number % 1_000 == 0 and (_dead(broker) or time.monotonic() - began > LIMIT_S):
                    break
            if run.plant:
                with broker.output.open("a") as out:
                    out.write("ERROR klamm.core.broker.connection: closed connection 0: unexpected plant\n")
            aimed.finish()
        return result


def _dead(broker: RunningBroker) -> bool:
    return not Path(f"/proc/{broker.pid}").exists()


def _record(folder: Path) -> list[bytes]:
    port = free_port()
    seen = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    with running_broker(folder, broker=seen) as broker, Recorder(port, broker.port) as recorder:
        use_clients(recorder.bootstrap)
        return list(recorder.frames)


def mutated(captures: list[bytes], chance: random.Random) -> bytes:
    """A frame with its length, which is right but for one in twenty: mostly small damage, seldom to API and version."""
    frame = bytearray(chance.choice(captures))
    keep = 4 if chance.random() < 0.9 else 0
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        _damage(frame, keep, captures, chance)
    size = len(frame) if chance.random() < 0.95 else chance.choice((len(frame) // 2, -1, 2**31 - 1, 1, 0))
    return struct.pack(">i", size) + bytes(frame)


def _damage(frame: bytearray, keep: int, captures: list[bytes], chance: random.Random) -> None:
    at = chance.randrange(min(keep, len(frame) - 1), len(frame))
    match chance.randrange(6):
        case 0:
            frame[at] ^= 1 << chance.randrange(8)
        case 1:
            frame[at] = chance.randrange(256)
        case 2:
            odd = chance.choice(ODD)
            frame[at : at + len(odd)] = odd
        case 3:
            del frame[at : at + chance.randint(1, 16)]
        case 4:
            frame[at:at] = chance.randbytes(chance.randint(1, 16))
        case _:
            other = chance.choice(captures)
            begin = chance.randrange(len(other))
            frame[at:] = other[begin:]
    while len(frame) < 2:
        frame += b"\0"


CAMPAIGNS = [FuzzCaptures()]
