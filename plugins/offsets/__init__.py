"""Built-in offset stores: `coordination` (the default)."""

from __future__ import annotations

from collections.abc import Iterable

from klamm.core.hookspecs import hookimpl
from klamm.core.seams.offsets import OffsetStore
from klamm.core.seams.provider import Provider
from klamm.plugins.offsets.coordination import CoordinationOffsetStore


@hookimpl
def klamm_offset_stores() -> Iterable[Provider[OffsetStore]]:
    return [
        Provider(
            "coordination",
            CoordinationOffsetStore,
            summary="in the coordination's tree, under /consumers/<group>/offsets",
        )
    ]
