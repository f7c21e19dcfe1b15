"""Built-in envelopes: the formats of the schema reference in a payload (design D8)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from klamm.plugin import Provider, hookimpl

if TYPE_CHECKING:
    from klamm.plugin import Envelope

__all__ = ["klamm_envelopes"]


@hookimpl
def klamm_envelopes() -> Iterable[Provider[[], Envelope]]:
    """The envelopes of Confluent, LinkedIn and Avro."""
    from .confluent import ConfluentEnvelope  # here, so that `klamm --help` does not load them
    from .confluent_header import ConfluentHeaderEnvelope
    from .linkedin import LinkedInEnvelope
    from .single_object import SingleObjectEnvelope

    return [
        Provider("confluent", lambda _: ConfluentEnvelope(), summary="0x00 and the schema's id in 4 bytes"),
        Provider("confluent-header", lambda _: ConfluentHeaderEnvelope(), summary="0x01 and the GUID, in a header"),
        Provider("linkedin", lambda _: LinkedInEnvelope(), summary="0x00 and the MD5 of the schema's text"),
        Provider("single-object", lambda _: SingleObjectEnvelope(), summary="C3 01 and the schema's CRC-64-AVRO"),
    ]
