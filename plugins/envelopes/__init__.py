"""Built-in envelopes: the formats of the schema reference in a payload (design D8)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from klamm.plugin import Provider, hookimpl

if TYPE_CHECKING:
    from klamm.plugin import Envelope, NoConfig


@hookimpl
def klamm_envelopes() -> Iterable[Provider[[], Envelope]]:
    """The envelopes of Confluent, LinkedIn and Avro."""
    return [
        Provider("confluent", _confluent, summary="0x00 and the schema's id in 4 bytes"),
        Provider("confluent-header", _confluent_header, summary="0x01 and the GUID, in a header"),
        Provider("linkedin", _linkedin, summary="0x00 and the MD5 of the schema's text"),
        Provider("single-object", _single_object, summary="C3 01 and the schema's CRC-64-AVRO"),
    ]


def _confluent(_: NoConfig) -> Envelope:
    from .confluent import ConfluentEnvelope

    return ConfluentEnvelope()


def _confluent_header(_: NoConfig) -> Envelope:
    from .confluent_header import ConfluentHeaderEnvelope

    return ConfluentHeaderEnvelope()


def _linkedin(_: NoConfig) -> Envelope:
    from .linkedin import LinkedInEnvelope

    return LinkedInEnvelope()


def _single_object(_: NoConfig) -> Envelope:
    from .single_object import SingleObjectEnvelope

    return SingleObjectEnvelope()
