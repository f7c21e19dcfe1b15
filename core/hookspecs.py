"""Every hook that Klamm calls, with its signature and one-line contract, and nothing else.

Hooks are called once, at start, and return *providers*: a name, a configuration model and a factory. The objects that
factories make are what the core then calls, per batch. A plugin package implements any of these with `@klamm.hookimpl`
and names its module in the entry-point group `klamm`. `Provider[[Coordination], OffsetStore]` provides an `OffsetStore`
that `create(config, coordination)` makes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:  # annotations only: `klamm --help` loads the hooks, and need not load what they return
    from .interfaces.audit import Audit
    from .interfaces.codec import Codec
    from .interfaces.command import Command
    from .interfaces.coordination import Coordination
    from .interfaces.envelope import Envelope
    from .interfaces.interceptor import ConsumerInterceptor, ProducerInterceptor
    from .interfaces.load import Load
    from .interfaces.offsets import OffsetStore
    from .interfaces.provider import Provider
    from .interfaces.security.authenticator import Authenticator
    from .interfaces.security.authorizer import Authorizer
    from .interfaces.serde import Serde, SerdeContext
    from .interfaces.service import BrokerContext, Service
    from .interfaces.sink import BatchSink, Sink
    from .interfaces.validator import TopicValidator

__all__ = [
    "PROJECT",
    "hookimpl",
    "hookspec",
    "klamm_audits",
    "klamm_authenticators",
    "klamm_authorizers",
    "klamm_codecs",
    "klamm_commands",
    "klamm_consumer_interceptors",
    "klamm_coordinations",
    "klamm_envelopes",
    "klamm_loads",
    "klamm_offset_stores",
    "klamm_producer_interceptors",
    "klamm_serdes",
    "klamm_services",
    "klamm_sinks",
    "klamm_topic_validators",
]

PROJECT = "klamm"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def klamm_codecs() -> Iterable[Provider[[], Codec]]:  # type: ignore[empty-body]
    """Compression codecs; `create(config)`. One that raises refuses the request or read that needed it."""


@hookspec
def klamm_coordinations() -> Iterable[Provider[[], Coordination]]:  # type: ignore[empty-body]
    """Coordination services; `create(config)`. One that raises at start stops the process."""


@hookspec
def klamm_offset_stores() -> Iterable[Provider[[Coordination], OffsetStore]]:  # type: ignore[empty-body]
    """Offset stores; `create(config, coordination)`. One that raises refuses the commit or fetch."""


@hookspec
def klamm_envelopes() -> Iterable[Provider[[], Envelope]]:  # type: ignore[empty-body]
    """Schema envelopes; `create(config)`. One that raises refuses the one record."""


@hookspec
def klamm_serdes() -> Iterable[Provider[[SerdeContext], Serde]]:  # type: ignore[empty-body]
    """Typed values; `create(config, context)`. One that raises refuses the record."""


@hookspec
def klamm_audits() -> Iterable[Provider[[], Audit]]:  # type: ignore[empty-body]
    """Audit systems; `create(config)`. One that raises is counted and skipped."""


@hookspec
def klamm_sinks() -> Iterable[Provider[[], Sink | BatchSink]]:  # type: ignore[empty-body]
    """Sinks; `create(config)`. One that raises stops its task before offsets are committed."""


@hookspec
def klamm_loads() -> Iterable[Provider[[], Load]]:  # type: ignore[empty-body]
    """Sections of `sinks` that a command fills; `create(config)`. One that raises in `check` refuses the section."""


@hookspec
def klamm_producer_interceptors() -> Iterable[Provider[[], ProducerInterceptor]]:  # type: ignore[empty-body]
    """Producer interceptors; `create(config)`. One that raises is counted and skipped."""


@hookspec
def klamm_consumer_interceptors() -> Iterable[Provider[[], ConsumerInterceptor]]:  # type: ignore[empty-body]
    """Consumer interceptors; `create(config)`. One that raises is counted and skipped."""


@hookspec
def klamm_topic_validators() -> Iterable[Provider[[], TopicValidator]]:  # type: ignore[empty-body]
    """Topic validators on the broker; `create(config)`. One that raises refuses the batch (INVALID_RECORD)."""


@hookspec
def klamm_services() -> Iterable[Provider[[BrokerContext], Service]]:  # type: ignore[empty-body]
    """Services beside a broker; `create(config, context)`. One that raises at start stops the broker."""


@hookspec
def klamm_authenticators() -> Iterable[Provider[[], Authenticator]]:  # type: ignore[empty-body]
    """Authenticators on the broker; `create(config)`. One that raises closes the client's connection."""


@hookspec
def klamm_authorizers() -> Iterable[Provider[[], Authorizer]]:  # type: ignore[empty-body]
    """Authorizers on the broker; `create(config)`. One that raises refuses the resource (…_AUTHORIZATION_FAILED)."""


@hookspec
def klamm_commands() -> Iterable[Command]:  # type: ignore[empty-body]
    """Subcommands of `klamm`, imported when run. One that raises ends that command."""
