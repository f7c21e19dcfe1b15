"""Falsifies every length of every served request: 2^31-1, negative, varints without an end, nested tags."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count

from harness import Result, Run
from klamm.core.errors import ProtocolError
from klamm.core.protocol import messages
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.bounds_check import write_uvarint
from klamm.core.protocol.produce.request import read_produce_request
from klammtest.broker import running_broker
from peers.bombard import Bombardment
from peers.forge import forge_request, framed, requests
from peers.swarm import Shot

LIMIT_S = 900.0
PARTITION_TAGS = 3_000


class LengthLies:
    name = "length-lies"
    injects = (
        "each length and count of a request of every API and version replaced by 2^31-1, -1, -2^31, 2^24, 0, varints "
        "of 2^32-1, of 5, 10 and 60 bytes; sections of thousands of tags; to the decoder and to a broker"
    )
    asserts = "the decoder's ProtocolError, an answer, or one closed connection; nothing unexpected in the broker's log"
    plants = "one request is decoded without the bounds check's error being expected"
    tools = ()

    def run(self, run: Run) -> Result:
        result = Result()
        with running_broker(run.folder, topics={"control": {"partitions": 1}}) as broker:
            aimed = Bombardment([broker], result)
            aimed.send(_shots(run, result), LIMIT_S)
            aimed.finish()
        result.wanted = 1 if run.only is not None else 400 if run.quick else 20_000
        return result


def _shots(run: Run, result: Result) -> Iterator[Shot]:
    """Yields all frames for the broker, and passes them, and more, to the decoder meanwhile."""
    numbers = count()
    for api, version in requests():
        if run.only is not None and run.only != api:
            continue
        result.count("apis-and-versions")
        chance = run.chance(f"{api.name} {version}")
        lies = list(_lies(api, version, chance, rounds=1 if run.quick else 6))
        for body in lies:
            _decode(api, version, body, result, plant=run.plant)
        for body in chance.sample(lies, min(len(lies), 4)) if run.quick else lies:
            yield Shot(next(numbers), framed(api, version, body))


def _lies(api: ApiKey, version: int, chance: random.Random, rounds: int) -> Iterator[bytes]:
    for _ in range(rounds):
        forged = forge_request(api, version, chance)
        yield from forged.lied()
        if messages.request(api, version).flexible:
            tags = b"".join(write_uvarint(1000 + n) + b"\0" for n in range(PARTITION_TAGS))
            yield bytes(forged.data[:-1]) + write_uvarint(PARTITION_TAGS) + tags
        yield bytes(forged.data[: chance.randrange(len(forged.data) + 1)])


def _decode(api: ApiKey, version: int, body: bytes, result: Result, *, plant: bool) -> None:
    result.count("decoded")
    try:
        if api is ApiKey.PRODUCE:
            read_produce_request(bytearray(body), 0, version)
        else:
            messages.request(api, version).decode(body, whole=False)
    except ProtocolError as error:
        if plant and version == 0:
            result.wrong(int(api), f"the plant: {error}")
    except Exception as error:
        result.wrong(int(api), f"{api.name} v{version}: {type(error).__name__}: {error}")


CAMPAIGNS = [LengthLies()]
