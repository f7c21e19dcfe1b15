"""A plugin that implements every hook with a small object; loaded by `plugins.modules`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer

from klamm.core.config.section import Int, Section, key
from klamm.core.hookspecs import hookimpl
from klamm.core.interfaces.command import Command
from klamm.core.interfaces.provider import Provider
from klamm.core.plugins import mandatory
from klammtest.pages.hook_reference import hooks, made_by


class Options(Section):
    """Configuration of each plugin."""

    the_answer: Int = key(0, "A number.", ge=0)


class Thing:
    """Has the members of every interface, and remembers its arguments."""

    codec_id = 7
    name = "everything"

    def __init__(self, config: Options, *more: Any) -> None:
        self.answer = config.the_answer
        self.more = more


for interface in {made for hook in hooks().values() for made in made_by(hook) if made is not Command}:
    for member in mandatory(interface):
        if member not in vars(Thing):
            setattr(Thing, member, lambda *_, **__: None)


def provider() -> list[Provider[..., Any]]:
    return [Provider("everything", Thing, Options, "a thing")]


def hello(name: str = "world") -> None:
    """Say hello."""
    typer.echo(f"hello {name}")


@hookimpl
def klamm_codecs() -> Iterable[Provider[..., Any]]:
    return provider()


@hookimpl
def klamm_coordinations() -> Iterable[Provider[..., Any]]:
    return provider()


@hookimpl
def klamm_offset_stores() -> Iterable[Provider[..., Any]]:
    return provider()


@hookimpl
def klamm_envelopes() -> Iterable[Provider[..., Any]]:
    return provider()


@hookimpl
def klamm_serdes() -> Iterable[Provider[..., Any]]:
    return provider()


@hookimpl
def klamm_audits() -> Iterable[Provider[..., Any]]:
    return provider()


@hookimpl
def klamm_sinks() -> Iterable[Provider[..., Any]]:
    return provider()


@hookimpl
def klamm_producer_interceptors() -> Iterable[Provider[..., Any]]:
    return provider()


@hookimpl
def klamm_consumer_interceptors() -> Iterable[Provider[..., Any]]:
    return provider()


@hookimpl
def klamm_topic_validators() -> Iterable[Provider[..., Any]]:
    return provider()


@hookimpl
def klamm_authenticators() -> Iterable[Provider[..., Any]]:
    return provider()


@hookimpl
def klamm_authorizers() -> Iterable[Provider[..., Any]]:
    return provider()


@hookimpl
def klamm_loads() -> Iterable[Provider[..., Any]]:
    return [Provider("everything-load", Thing, Options, "a thing")]


@hookimpl
def klamm_services() -> Iterable[Provider[..., Any]]:
    return provider()


@hookimpl
def klamm_commands() -> Iterable[Command]:
    return [Command("hello", "klammtest.plugins.everything:hello", "Say hello.")]
