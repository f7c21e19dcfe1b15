"""The contract of `klamm.plugin.TopicValidator`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pytest

from klamm.core.errors import KlammError
from klamm.core.interfaces.validator import TopicValidator
from klamm.core.records.record import Record

__all__ = ["TopicValidatorContract"]


def _batch(values: Sequence[bytes | None]) -> list[Record]:
    """Returns records with offsets relative to their batch, as the broker passes them."""
    return [Record(offset, 1_700_000_000_000, None, value, ()) for offset, value in enumerate(values)]


class TopicValidatorContract:
    """The suite of a validator. Define `validator`, a fixture that returns the validator, and the three attributes."""

    topic: str
    """A topic that it applies to."""
    config: Mapping[str, str] = MappingProxyType({})
    """The configuration with which it applies to it."""
    accepted: Sequence[bytes | None]
    """Values that it accepts, at least one."""
    refused: Sequence[bytes | None]
    """Values that it refuses, at least one."""

    @pytest.fixture
    def validator(self) -> TopicValidator:
        raise NotImplementedError(f"{type(self).__name__} needs a fixture `validator` that returns the one under test")

    def test_it_applies_to_its_topic(self, validator: TopicValidator) -> None:
        assert validator.applies_to(self.topic, self.config) is True
        assert validator.applies_to("another-topic-that-nobody-has", {}) in (True, False)

    def test_it_accepts_each_value_and_all_in_one_batch(self, validator: TopicValidator) -> None:
        for value in self.accepted:
            validator.validate(self.topic, 0, _batch([value]))
        validator.validate(self.topic, 0, _batch(self.accepted))

    def test_one_value_refuses_its_batch_in_one_line(self, validator: TopicValidator) -> None:
        for value in self.refused:
            with pytest.raises(KlammError) as caught:
                validator.validate(self.topic, 0, _batch([*self.accepted, value]))
            assert str(caught.value)
            assert "\n" not in str(caught.value)

    def test_a_refusal_leaves_nothing_behind(self, validator: TopicValidator) -> None:
        with pytest.raises(KlammError):
            validator.validate(self.topic, 0, _batch(self.refused))
        validator.validate(self.topic, 0, _batch(self.accepted))

    @pytest.mark.parametrize(
        "value", [None, b"", b"\xff\xfe\x00", b"{" * 100_000], ids=["null", "empty", "bytes", "deep"]
    )
    def test_any_value_is_accepted_or_refused(self, validator: TopicValidator, value: bytes | None) -> None:
        """Another exception refuses the batch too, but is a defect: it has no line for the producer."""
        try:
            validator.validate(self.topic, 0, _batch([value]))
        except KlammError as error:
            assert "\n" not in str(error)  # noqa: PT017 - the one allowed kind
