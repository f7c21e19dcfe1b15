from __future__ import annotations

import pytest

from klamm.core.protocol.software import declare_codecs, declared_codecs


def test_third_party_ids_are_declared_and_read_back() -> None:
    version = declare_codecs("0.1.0", [0, 1, 2, 3, 4, 6, 5])
    assert version == "0.1.0-codecs.5.6"
    assert declared_codecs(version) == {5, 6}


def test_nothing_is_declared_for_kafkas_own_codecs() -> None:
    assert declare_codecs("0.1.0", [0, 1, 2, 3, 4]) == "0.1.0"


@pytest.mark.parametrize("text", ["", "2.13.0", "codecs", "1-codecs.", "1-codecs.9", "1-codecs.5.x", "1-codecs.5 "])
def test_other_texts_declare_nothing(text: str) -> None:
    assert declared_codecs(text) == frozenset()
