"""The highest ids, kept in the coordination: they survive the topic's compaction and its restore from a backup."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from klamm.core.interfaces.coordination import BadVersionError, Coordination, NodeExistsError, NoNodeError

LastIds = Callable[[Mapping[str, int]], Mapping[str, int]]
"""Raises the highest ids by context that are kept outside the topic, and returns them."""

_PATH: Final = "/schemas/last_id"


def kept_ids(coordination: Coordination) -> LastIds:
    """Returns the store of the highest ids by context in the coordination: they survive the topic's compaction, and a
    restore of the topic from a backup."""

    def keep(ids: Mapping[str, int]) -> dict[str, int]:
        while True:
            try:
                data, stat = coordination.get(_PATH)
            except NoNodeError:
                with suppress(NodeExistsError):
                    coordination.create(_PATH, b"{}", make_parents=True)
                continue
            known: dict[str, int] = json.loads(data or b"{}")
            raised = {context: max(known.get(context, 0), ids.get(context, 0)) for context in {*known, *ids}}
            if raised == known:
                return known
            try:
                coordination.set(_PATH, json.dumps(raised, sort_keys=True).encode(), stat.version)
            except BadVersionError:
                continue
            return raised

    return keep
