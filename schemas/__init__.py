"""Schemas: the registry in a topic, compatibility, typed Avro serdes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from klamm.core.hookspecs import hookimpl
from klamm.core.interfaces.provider import Provider

from .options import AvroOptions

if TYPE_CHECKING:
    from klamm.core.interfaces.serde import Serde, SerdeContext


def _avro(options: AvroOptions, context: SerdeContext) -> Serde:
    from .serde import AvroSerde

    return cast("Serde", AvroSerde(options, context))


@hookimpl
def klamm_serdes() -> Iterable[Provider[Serde]]:
    return [Provider("avro", _avro, AvroOptions, "Avro by a registered schema: dicts or dataclasses")]
