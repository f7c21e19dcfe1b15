"""Built-in envelopes: the formats of the schema reference in a payload (design D8)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, cast

from klamm.plugin import Provider, hookimpl

if TYPE_CHECKING:
    from klamm.plugin import Envelope, NoConfig


@hookimpl
def klamm_envelopes() -> Iterable[Provider[[], Envelope]]:
    """The envelopes of Confluent, LinkedIn and Avro."""
    return [
        Provider("confluent", _named("ConfluentEnvelope"), summary="0x00 and the schema's id in 4 bytes"),
        Provider("confluent-header", _named("ConfluentHeaderEnvelope"), summary="0x01 and the GUID, in a header"),
        Provider("linkedin", _named("LinkedInEnvelope"), summary="0x00 and the MD5 of the schema's text"),
        Provider("single-object", _named("SingleObjectEnvelope"), summary="C3 01 and the schema's CRC-64-AVRO"),
    ]


def _named(name: str) -> Callable[[NoConfig], Envelope]:
    """Returns what makes this class of `formats`, which is imported then: a broker needs none."""
    return lambda _: cast("Envelope", getattr(import_module(f"{__name__}.formats"), name)())
