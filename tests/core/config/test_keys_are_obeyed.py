"""No key is on offer that nothing obeys: code outside the configuration reads each as an attribute."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from klamm.core.config.section import dotted
from klamm.core.config.sections.broker import BrokerConfig
from klamm.core.config.sections.consumer import ConsumerConfig
from klamm.core.config.sections.mirror import MirrorConfig
from klamm.core.config.sections.producer import ProducerConfig
from klamm.core.config.sections.sink import SinkSettings
from klamm.core.config.sections.topic import BROKER_SYNONYMS, TOPIC_DEFINITIONS, TopicConfig

ROOT = Path(__file__).resolve().parents[3]
CONFIG = ROOT / "core" / "config"
READERS = {
    BrokerConfig: ("core/broker", "core/cli", "core/config"),
    ProducerConfig: ("core/client", "core/config"),
    ConsumerConfig: ("core/client", "core/config"),
    SinkSettings: ("core/client", "core/config", "hadoop"),
    MirrorConfig: ("core/broker", "core/mirror", "core/cli"),
    TopicConfig: ("core/log", "core/broker", "core/cluster", "core/config"),
}
"""The modules that read a section: a message's field of the same name elsewhere is not the key."""

SECTIONS = (
    "config", "options", "settings", "current", "tuning", "section", "producer", "consumer", "broker", "sink",
    "defaults",
)  # fmt: skip
"""Names of what holds a section, with or without an underscore before them."""

DEFAULTS_OF_TOPICS = {name for keys in BROKER_SYNONYMS.values() for name, _ in keys}


class Reads(ast.NodeVisitor):
    """The attributes that one module reads from a section; in the configuration's own modules from `self`, but for
    validators: a check obeys nothing."""

    def __init__(self, of_config: bool) -> None:
        self._of_config = of_config
        self.names: set[str] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if not any("validator" in ast.unparse(decorator) for decorator in node.decorator_list):
            self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load) and self._from_section(node.value):
            self.names.add(node.attr)
        self.generic_visit(node)

    def _from_section(self, holder: ast.expr) -> bool:
        if isinstance(holder, ast.Attribute):
            return holder.attr.removeprefix("_") in SECTIONS
        if isinstance(holder, ast.Name):
            return holder.id in SECTIONS or (self._of_config and holder.id == "self")
        return isinstance(holder, ast.Call) and self._from_section(holder.func)


def modules(folders: tuple[str, ...]) -> Iterator[tuple[bool, str]]:
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            yield CONFIG in path.parents, path.read_text(encoding="utf-8")


def unread(model: type[BaseModel], sources: Iterator[tuple[bool, str]]) -> list[str]:
    read: set[str] = set()
    for of_config, source in sources:
        found = Reads(of_config)
        found.visit(ast.parse(source))
        read |= found.names
    names = set(model.model_fields) - read
    return sorted(dotted(name) for name in names if model is not BrokerConfig or dotted(name) not in DEFAULTS_OF_TOPICS)


@pytest.mark.parametrize("model", READERS, ids=lambda model: model.__name__)
def test_every_key_is_read_where_it_is_obeyed(model: type[BaseModel]) -> None:
    assert unread(model, modules(READERS[model])) == []


def test_a_mention_or_a_check_is_no_reading() -> None:
    class Keys(BaseModel):
        told: int
        checked: int
        sent: int
        obeyed: int

    source = '''
"""told"""
@model_validator(mode="after")
def check(self):
    return self.checked
def serve(message, config):
    config.sent = message.sent
    return config.obeyed
'''
    assert unread(Keys, iter([(True, source)])) == ["checked", "sent", "told"]


DIFFERENT = {
    "cleanup.policy": "compact",
    "compression.type": "gzip",
    "message.timestamp.type": "LogAppendTime",
    "unclean.leader.election.enable": True,
    "verify.payload": "all",
}


@pytest.mark.parametrize(
    ("name", "key", "factor"),
    [(name, key, factor) for name, keys in BROKER_SYNONYMS.items() for key, factor in keys],
    ids=lambda value: str(value),
)
def test_a_brokers_default_reaches_the_topics(name: str, key: str, factor: int) -> None:
    """These keys are read by way of the topic's own key."""
    field = name.replace(".", "_")
    usual: Any = getattr(TopicConfig(), field)
    value: Any = DIFFERENT.get(name, 0.25 if isinstance(usual, float) else 20)
    defaults = BrokerConfig.model_validate({key: value}).topic_defaults()
    wanted = value * factor if isinstance(value, int) and not isinstance(value, bool) else value
    assert getattr(defaults, field) == wanted != usual
    assert name in TOPIC_DEFINITIONS
