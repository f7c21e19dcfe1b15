"""The table of `docs/plugins.md` names the methods of each interface, and a suite that exists."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from klamm.testing import contracts

PAGE = Path(__file__).resolve().parents[2] / "docs" / "plugins.md"
SECTION = PAGE.read_text(encoding="utf-8").partition("## Which methods are mandatory")[2].partition("\n## ")[0]
ROWS = {row[0]: row[1:] for row in re.findall(r"^\| `(klamm_\w+)` \| (.*?) \| ?(.*?) ?\| ?(.*?) ?\|$", SECTION, re.M)}
INTERFACES = {
    "klamm_codecs": ("codec", "Codec", ()),
    "klamm_coordinations": ("coordination", "Coordination", ()),
    "klamm_offset_stores": ("offsets", "OffsetStore", ("OffsetsTopicStore",)),
    "klamm_envelopes": ("envelope", "Envelope", ()),
    "klamm_serdes": ("serde", "Serde", ("CheckedSerde", "ArrowSerde")),
    "klamm_audits": ("audit", "Audit", ()),
    "klamm_sinks": ("sink", "Sink", ("TopicIdSink", "HistorySink", "QuarantineSink")),
    "klamm_loads": ("load", "Load", ()),
    "klamm_producer_interceptors": ("interceptor", "ProducerInterceptor", ()),
    "klamm_consumer_interceptors": ("interceptor", "ConsumerInterceptor", ()),
    "klamm_topic_validators": ("validator", "TopicValidator", ()),
    "klamm_services": ("service", "Service", ()),
    "klamm_authenticators": ("security.authenticator", "Authenticator", ()),
    "klamm_authorizers": ("security.authorizer", "Authorizer", ()),
}
BATCH_SINK = {"write_batches"}


def members(module: str, name: str) -> set[str]:
    interface = getattr(import_module(f"klamm.core.interfaces.{module}"), name)
    own = {*vars(interface), *getattr(interface, "__annotations__", ())}
    return {member for member in own if not member.startswith("_")}


def named(cell: str) -> set[str]:
    return set(re.findall(r"`([a-z]\w+)`", cell))


def test_every_hook_of_objects_has_a_row() -> None:
    assert set(ROWS) == set(INTERFACES)


@pytest.mark.parametrize("hook", INTERFACES)
def test_a_row_names_what_the_interface_has(hook: str) -> None:
    module, interface, more = INTERFACES[hook]
    mandatory, optional, suites = ROWS[hook]
    assert named(mandatory) - BATCH_SINK == members(module, interface)
    assert named(optional) >= {member for name in more for member in members(module, name)}
    assert all(hasattr(contracts, suite) for suite in re.findall(r"`(\w+Contract)`", suites))


def test_every_suite_is_in_the_table() -> None:
    shown = {suite for *_, suites in ROWS.values() for suite in re.findall(r"`(\w+)`", suites)}
    assert shown == {name for name in contracts.__all__ if name.endswith("Contract")}
