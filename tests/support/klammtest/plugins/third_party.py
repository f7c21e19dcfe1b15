"""Example plugins of a third party: a codec with an id of its own, and topic validators. Loaded by
`plugins.modules`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from klamm.core.errors import KlammError
from klamm.core.hookspecs import hookimpl
from klamm.core.interfaces.codec import Buffer, Codec, DecompressionBombError
from klamm.core.interfaces.provider import Provider
from klamm.core.interfaces.validator import TopicValidator
from klamm.core.records.record import Record


class Backwards:
    """Codec 5: the bytes in the opposite order."""

    name = "backwards"
    codec_id = 5

    def compress(self, data: Buffer) -> bytes:
        return bytes(data)[::-1]

    def decompress(self, data: Buffer, max_size: int) -> bytes:
        if len(data) > max_size:
            raise DecompressionBombError(f"{len(data)} bytes, the bound is {max_size}")
        return bytes(data)[::-1]


class Polite:
    """A validator for topics whose name begins with `polite`: every value must contain "please". A value with `bug`
    makes the validator itself fail.
    """

    def applies_to(self, topic: str, config: Mapping[str, str]) -> bool:
        return topic.startswith("polite")

    def validate(self, topic: str, partition: int, records: Sequence[Record]) -> None:
        for record in records:
            if record.value == b"bug":
                raise ZeroDivisionError("a bug in the validator")
            if b"please" not in (record.value or b""):
                raise KlammError(f"record {record.offset} does not say please")


@hookimpl
def klamm_codecs() -> Iterable[Provider[[], Codec]]:
    return [Provider("backwards", lambda _: Backwards())]


@hookimpl
def klamm_topic_validators() -> Iterable[Provider[[], TopicValidator]]:
    return [Provider("polite", lambda _: Polite())]
