"""Built-in envelopes: how a payload names the schema it was written with (design D8)."""

from __future__ import annotations

from collections.abc import Iterable

from klamm.core.hookspecs import hookimpl
from klamm.core.interfaces.envelope import Envelope
from klamm.core.interfaces.provider import Provider

from .confluent import ConfluentEnvelope
from .linkedin import LinkedInEnvelope
from .single_object import SingleObjectEnvelope


@hookimpl
def klamm_envelopes() -> Iterable[Provider[Envelope]]:
    return [
        Provider("confluent", lambda _: ConfluentEnvelope(), summary="0x00 and the schema's id in 4 bytes"),
        Provider("linkedin", lambda _: LinkedInEnvelope(), summary="0x00 and the MD5 of the schema's text"),
        Provider("single-object", lambda _: SingleObjectEnvelope(), summary="C3 01 and the schema's CRC-64-AVRO"),
    ]
