"""Mutated requests of real clients: flipped bits, changed bytes, pieces removed, doubled or taken from another request,
false lengths.
"""

from __future__ import annotations

import random
import struct
from contextlib import ExitStack
from pathlib import Path

from harness import Result, Run
from klammtest.broker import running_broker
from klammtest.ports import free_port
from peers.bombard import Bombardment
from peers.recorded import Recorder, use_clients
from peers.swarm import Shot

FULL, QUICK = 1_000_000, 2_000
LIMIT_S = 2_200.0
BROKERS = 2
LIMITS = {"socket.request.max.bytes": 1 << 20, "connections.max.idle.ms": 60_000}
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
        captures = _record(run.folder / "recorded")
        result.figures["captures"] = len(captures)
        with ExitStack() as stack:
            brokers = [
                stack.enter_context(
                    running_broker(run.folder / f"target-{n}", topics={"control": {"partitions": 1}}, broker=LIMITS)
                )
                for n in range(1 if run.quick else BROKERS)
            ]
            aimed = Bombardment(brokers, result)
            aimed.send((shot(number, captures, chance) for number, chance in run.injections(QUICK, FULL)), LIMIT_S)
            if run.plant:
                with brokers[0].output.open("a") as out:
                    out.write("ERROR klamm.core.broker.network.connection: closed connection 0: unexpected plant\n")
            aimed.finish()
        return result


def _record(folder: Path) -> list[bytes]:
    port = free_port()
    seen = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    with running_broker(folder, broker=seen) as broker, Recorder(port, broker.port) as recorder:
        use_clients(recorder.bootstrap)
        return list(recorder.frames)


def shot(number: int, captures: list[bytes], chance: random.Random) -> Shot:
    """Returns a mutated frame with its length, which is false in one of twenty: mostly small damage, seldom to API and
    version.
    """
    frame = bytearray(chance.choice(captures))
    keep = 4 if chance.random() < 0.9 else 0
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        _damage(frame, keep, captures, chance)
    lies = chance.random() >= 0.95
    size = chance.choice((len(frame) // 2, -1, 2**31 - 1, 1, 0)) if lies else len(frame)
    return Shot(number, struct.pack(">i", size) + bytes(frame), lies)


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
