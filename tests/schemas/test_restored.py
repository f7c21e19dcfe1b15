"""A coordination that is older than the schemas topic: what it lost is claimed again before anything new is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from klamm.core.errors import SchemaError
from klamm.core.interfaces.envelope import SchemaKey
from klamm.schemas.claims import SchemaIdClaims
from klamm.schemas.registry import SchemaRegistry
from klammtest.guarantees import guarantee
from klammtest.schemas import MemoryLog, embedded, registry


def schema(name: str) -> str:
    field = {"name": name, "type": ["null", "int"], "default": None}
    return json.dumps({"type": "record", "name": "R", "fields": [field]})


def believe_the_coordination(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SchemaRegistry, "_restore", lambda *_: False)


@guarantee("D14", "a coordination from an older backup gives no schema id again", plant=believe_the_coordination)
def test_ids_and_versions_of_the_topic_are_not_given_again(tmp_path: Path) -> None:
    log = MemoryLog()
    for folder, names in (("lost", "abc"), ("restored", "a")):
        (tmp_path / folder).mkdir()
        coordination = embedded(tmp_path / folder)
        log_then = log if folder == "lost" else MemoryLog()
        made = registry(coordination, log_then)
        for name in names:
            made.register("t-value", schema(name))
        coordination.close()
    restored = embedded(tmp_path / "restored")
    try:
        made = registry(restored, log)
        assert made.register("t-value", schema("d")).schema_id == 4
        assert made.register("u-value", schema("c")).schema_id == 3
        assert [(e.version, e.schema_id) for e in made.versions("t-value")] == [(1, 1), (2, 2), (3, 3), (4, 4)]
        found = {i: registry(restored, log).lookup(SchemaKey(schema_id=i)).text for i in range(1, 5)}
        assert found == {i: schema(name) for i, name in enumerate("abcd", 1)}
    finally:
        restored.close()


def test_an_id_that_was_given_again_before_is_said(tmp_path: Path) -> None:
    log = MemoryLog()
    (tmp_path / "lost").mkdir()
    lost = embedded(tmp_path / "lost")
    for name in "ab":
        registry(lost, log).register("t-value", schema(name))
    lost.close()
    restored = embedded(tmp_path)
    try:
        assert SchemaIdClaims(restored).claim("other-value", 1, schema("x"), None) == 1
        with pytest.raises(SchemaError, match=r"id 1 is another schema's in the coordination, of other-value.*backup"):
            registry(restored, log).register("t-value", schema("c"))
    finally:
        restored.close()
