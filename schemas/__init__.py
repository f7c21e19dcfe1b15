"""Schemas: the registry in a topic, compatibility, typed Avro serdes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from klamm.core.hookspecs import hookimpl
from klamm.core.interfaces.provider import Provider

if TYPE_CHECKING:
    from klamm.plugin import Serde, SerdeContext

    from .options import AvroOptions

__all__ = ["klamm_serdes"]


def _avro(options: AvroOptions, context: SerdeContext) -> Serde:
    from .serde import AvroSerde

    return AvroSerde(options, context)


@hookimpl
def klamm_serdes() -> Iterable[Provider[[SerdeContext], Serde]]:
    """Registers the serde `avro`."""
    from .options import AvroOptions  # here, so that `klamm --help` does not load it

    return [Provider("avro", _avro, AvroOptions, "Avro by a registered schema: dicts or dataclasses")]
