"""The line about a damaged file of a lake names the file and the field."""

from __future__ import annotations

from typing import cast

import pytest

from klamm.hadoop.lake.layout import TopicLayout
from klamm.hadoop.lake.manifest import parse_manifest
from klamm.hadoop.load.audit import read_audit
from klamm.hadoop.publishing.interface import LakeError, LakeReader


class OneFile:
    def __init__(self, data: bytes | None) -> None:
        self._data = data

    def read(self, path: str) -> bytes | None:
        del path
        return self._data


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"{}", r"^lake/_offsets.json is not a manifest of a load: \w+: Field required$"),
        (b"[]", r"^lake/_offsets.json is not a manifest of a load: Input should be an object$"),
        (b"", r"^lake/_offsets.json is not a manifest of a load: Invalid JSON: EOF"),
    ],
)
def test_a_damaged_manifest_names_the_field(data: bytes, says: str) -> None:
    with pytest.raises(LakeError, match=says):
        parse_manifest("lake/_offsets.json", data)


@pytest.mark.parametrize(
    ("data", "says"), [(None, r"load=000001/_audit.json is missing$"), (b"{}", r"cannot be read: \w+: Field required$")]
)
def test_missing_counts_are_called_missing(data: bytes | None, says: str) -> None:
    with pytest.raises(LakeError, match=says):
        read_audit(cast(LakeReader, OneFile(data)), TopicLayout("lake", "trips"), 1)
