"""No key is on offer that nothing obeys."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from klamm.core.config.broker import BrokerConfig
from klamm.core.config.consumer import ConsumerConfig
from klamm.core.config.producer import ProducerConfig
from klamm.core.config.sink import SinkSettings
from klamm.core.config.topic import BROKER_SYNONYMS, TopicConfig

ROOT = Path(__file__).resolve().parents[3]
SOURCE = "\n".join(
    path.read_text(encoding="utf-8")
    for room in ("core", "plugins", "schemas", "hadoop")
    for path in (ROOT / room).rglob("*.py")
    if ROOT / "core" / "config" not in path.parents
)
DEFAULTS_OF_TOPICS = {name.replace(".", "_") for keys in BROKER_SYNONYMS.values() for name, _ in keys}
READ_BY_METHODS = {"advertised_listeners", "listeners", "cleanup_policy", "max_connections_per_ip_overrides"}
COMPACTION = {"delete_retention_ms", "max_compaction_lag_ms", "min_cleanable_dirty_ratio", "min_compaction_lag_ms"}
"""Kafka's clients set these with `cleanup.policy=compact`; they are kept, and obeyed once logs are compacted."""


@pytest.mark.parametrize("model", [BrokerConfig, ProducerConfig, ConsumerConfig, SinkSettings, TopicConfig])
def test_every_key_is_read_somewhere(model: type[BaseModel]) -> None:
    defaults = DEFAULTS_OF_TOPICS if model is BrokerConfig else set()  # read by way of the topic's own key
    names = set(model.model_fields) - defaults - READ_BY_METHODS - COMPACTION
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", SOURCE)] == []
