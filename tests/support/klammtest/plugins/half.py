"""Plugins with mistakes: of each kind one that `klamm config check` finds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from klamm.core.hookspecs import hookimpl
from klamm.core.interfaces.provider import Provider

from .third_party import Backwards


class Half(Backwards):
    """A codec with the id of another one, and nothing else."""

    name = "half"


@hookimpl
def klamm_codecs() -> Iterable[Provider[..., Any]]:
    return [Provider("half", lambda _: Half())]


@hookimpl
def klamm_sinks() -> Iterable[Provider[..., Any]]:
    return [Provider("nothing", lambda _: None), Provider("raises", lambda _: 1 // 0)]


@hookimpl
def klamm_topic_validators() -> Iterable[Provider[..., Any]]:
    return [Provider("half", lambda _: Half())]


@hookimpl
def klamm_producer_interceptors() -> Iterable[Provider[..., Any]]:
    return [Provider("half", lambda _: Half())]
