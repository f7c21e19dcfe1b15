"""A fuzzer's target: passes bytes to every decoder of data from peers. Run as a program, it is atheris' target.

The first byte chooses the decoder. Anything but the decoder's own error is a finding: it is raised, and the fuzzer
keeps the bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from klamm.core.errors import CorruptRecordError, ProtocolError
from klamm.core.protocol import messages
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.frames import FrameSplitter
from klamm.core.protocol.headers import read_request_header, skip_tags
from klamm.core.protocol.produce.request import read_produce_request
from klamm.core.records.codecs import UnsupportedCodecError
from klamm.core.records.decode import decode_columns
from klamm.core.records.header import HEADER_SIZE, BatchHeader, crc_of, iter_headers, set_crc
from klammtest.logs import codec_table

MOST_RECORDS = 1 << 20
CODECS = codec_table()


def read_frames(data: bytes) -> None:
    splitter = FrameSplitter(1 << 16)
    for frame in splitter.feed(data):
        header = read_request_header(frame)
        skip_tags(frame, header.end)


def read_request(data: bytes) -> None:
    api, version = REQUESTS[data[0] % len(REQUESTS)]
    if api is ApiKey.PRODUCE:
        read_produce_request(bytearray(data), 1, version)
    else:
        messages.request(api, version).decode(data, 1, whole=False)


def read_response(data: bytes) -> None:
    api, version = REQUESTS[data[0] % len(REQUESTS)]
    messages.response(api, version).decode(data, 1)


def read_batch(data: bytes) -> None:
    """Reads a batch after correcting its CRC and length: a fuzzer would hardly find them."""
    batch = bytearray(data)
    if len(batch) < HEADER_SIZE:
        for _ in iter_headers(data):
            pass
        return
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[16] = 2
    set_crc(batch, 0, crc_of(batch, 0, len(batch)))
    decode_columns(batch, 0, BatchHeader.parse(batch), CODECS, MOST_RECORDS)


DECODERS: tuple[Callable[[bytes], None], ...] = (read_frames, read_request, read_request, read_response, read_batch)


def read_anything(data: bytes) -> None:
    """The fuzzer's entry."""
    if len(data) < 2:
        return
    try:
        DECODERS[data[0] % len(DECODERS)](data[1:])
    except (ProtocolError, CorruptRecordError, UnsupportedCodecError):
        return


def _requests() -> list[tuple[ApiKey, int]]:
    from peers.forge import requests

    return list(requests())


REQUESTS = _requests()


def main() -> None:
    import atheris

    planted = "--plant" in sys.argv
    arguments = [a for a in sys.argv if a != "--plant"]

    def entry(data: bytes) -> None:
        if planted and len(data) > 40:
            raise AssertionError("the plant")
        read_anything(data)

    for read in (read_request_header, skip_tags, read_produce_request, FrameSplitter.received, decode_columns):
        atheris.instrument_func(read)
    atheris.Setup(arguments, entry)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
