from __future__ import annotations

import pytest

from klamm.core.client.producer.partitioner import key_hash, load_partitioner
from klamm.core.errors import ConfigError
from klamm.core.records.murmur2 import murmur2


# From Kafka's own UtilsTest.testMurmur2 (signed there).
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("21", -973932308),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        ("abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(text: str, expected: int) -> None:
    assert murmur2(text.encode()) == expected % 2**32
    assert key_hash(text.encode()) == expected & 0x7FFFFFFF


def test_the_built_in_one_needs_no_import() -> None:
    assert load_partitioner("murmur2") is None


def test_a_callable_is_loaded_by_name() -> None:
    assert load_partitioner("klamm.core.client.producer.partitioner:murmur2") is murmur2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("random", "'random' is neither murmur2 nor module:callable"),
        ("no.such.module:f", "cannot load 'no.such.module:f'"),
        ("klamm.core.client.producer.partitioner:nothing", "cannot load"),
        ("klamm.core.records.murmur2:_M", "is not callable"),
    ],
)
def test_a_wrong_name_is_one_clear_line(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_partitioner(name)
