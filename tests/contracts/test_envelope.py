"""The contract of an envelope, over every one that is installed."""

from __future__ import annotations

import pytest

from klamm.core.interfaces.envelope import Envelope
from klamm.core.plugins import plugin_host
from klamm.testing.contracts import EnvelopeContract


class TestEnvelopes(EnvelopeContract):
    @pytest.fixture(params=plugin_host().envelopes.names())
    def envelope(self, request: pytest.FixtureRequest) -> Envelope:
        return plugin_host().envelopes.create(request.param)

    def test_its_name_is_what_yaml_selects(self, envelope: Envelope) -> None:
        assert plugin_host().envelopes.create(envelope.name).name == envelope.name


def test_built_ins_are_there() -> None:
    """Hook `klamm_envelopes`."""
    assert {"confluent", "confluent-header", "linkedin", "single-object"} <= set(plugin_host().envelopes.names())
