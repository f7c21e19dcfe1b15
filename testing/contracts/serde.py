"""The contract of `klamm.plugin.Serde`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from klamm.core.errors import SchemaError
from klamm.core.interfaces.serde import Serde

__all__ = ["SerdeContract"]


class SerdeContract:
    """The suite of a serde. Define `serde`, a fixture that returns the serde, and the four attributes."""

    topic: str
    """A topic for which it has a format."""
    values: Sequence[Any]
    """Values of that format, each equal to what is read back."""
    unfit: Sequence[Any]
    """Values that do not match the format."""
    unreadable: Sequence[bytes] = (b"\xff" * 40,)
    """Payloads that are no values of the format."""

    @pytest.fixture
    def serde(self) -> Serde:
        raise NotImplementedError(f"{type(self).__name__} needs a fixture `serde` that returns the one under test")

    def test_what_is_written_is_read_back(self, serde: Serde) -> None:
        write, read = serde.serializer(self.topic), serde.deserializer(self.topic)
        for value in self.values:
            payload = write(value)
            assert isinstance(payload, bytes)
            assert read(payload) == value

    def test_none_stays_none(self, serde: Serde) -> None:
        """A tombstone has no value, in no format."""
        assert serde.serializer(self.topic)(None) is None
        assert serde.deserializer(self.topic)(None) is None

    def test_an_unfit_value_is_one_line_that_names_the_topic(self, serde: Serde) -> None:
        for value in self.unfit:
            with pytest.raises(SchemaError, match=self.topic) as caught:
                serde.serializer(self.topic)(value)
            assert "\n" not in str(caught.value)

    def test_an_unreadable_payload_is_one_line(self, serde: Serde) -> None:
        for payload in self.unreadable:
            with pytest.raises(SchemaError) as caught:
                serde.deserializer(self.topic)(payload)
            assert "\n" not in str(caught.value)

    def test_threads_share_it(self, serde: Serde) -> None:
        write, read = serde.serializer(self.topic), serde.deserializer(self.topic)
        many = list(self.values) * 50
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda value: read(write(value)), many)) == many
