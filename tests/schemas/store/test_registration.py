"""The records by which a version is registered, and the requests that a registry refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from klamm.core.errors import SchemaError
from klamm.schemas.compatibility import Compatibility
from klamm.schemas.refusals import RefusedError
from klamm.schemas.store.config import Config, Mode
from klamm.schemas.store.records import (
    ConfigRecord,
    ContextRecord,
    ModeRecord,
    Record,
    SchemaRecord,
    SchemaTombstone,
    encode,
)
from klamm.schemas.store.registration import register
from klamm.schemas.store.schema import Reference, SchemaText
from klamm.schemas.store.schema_store import SchemaStore, SchemaVersion
from klammtest.schemas import store_of, stored

INT, LONG = SchemaText('"int"'), SchemaText('"long"')


class Compared:
    """A check that accepts, and keeps what it was asked."""

    def __init__(self, refuses: bool = False) -> None:
        self.asked: list[tuple[list[int], Compatibility | None]] = []
        self._refuses = refuses

    def __call__(self, versions: Sequence[SchemaVersion], config: Config) -> None:
        self.asked.append(([one.version for one in versions], config.compatibility_level))
        if self._refuses:
            raise SchemaError("not compatible")


def written(store: SchemaStore, subject: str, schema: SchemaText, **more: Any) -> list[Record]:
    return list(register(store, subject, schema, Compared(), **more).records)


def test_ids_are_of_the_schema_and_versions_of_the_subject() -> None:
    store = SchemaStore()
    for subject, schema, version, schema_id in [
        ("t", INT, 1, 1), ("t", LONG, 2, 2), ("u", LONG, 1, 2), ("t", INT, 1, 1), ("u", SchemaText('"x"'), 2, 3)
    ]:  # fmt: skip
        made = register(store, subject, schema, Compared())
        assert (made.version, made.schema_id) == (version, schema_id)
        for record in made.records:
            store.apply(store.position, 0, *encode(record))
    assert store.position == 4


def test_live_versions_are_compared_by_the_level_in_scope() -> None:
    store = store_of(
        stored("t", 1, 1, '"a"', deleted=True), stored("t", 2, 2, '"b"'), stored("t", 3, 3, '"c"'),
        ConfigRecord("t", Config(compatibility_level=Compatibility.FULL_TRANSITIVE)),
    )  # fmt: skip
    check = Compared()
    register(store, "t", INT, check)
    register(store, "u", INT, check)
    register(store, "t", LONG, check, force=True)
    assert check.asked == [([2, 3], Compatibility.FULL_TRANSITIVE), ([], Compatibility.BACKWARD)]
    with pytest.raises(SchemaError, match="not compatible"):
        register(store, "t", INT, Compared(refuses=True))
    assert register(store, "t", SchemaText('"c"'), Compared(refuses=True)).records == ()


def test_a_first_version_brings_context_and_configuration() -> None:
    config = Config(compatibility_level=Compatibility.NONE)
    made = written(SchemaStore(), ":.c:t", INT, config=config)
    assert made == [ContextRecord(".c"), ConfigRecord(":.c:t", config), SchemaRecord(":.c:t", 1, 1, INT)]
    for store in (store_of(stored("t", 1, 1, '"int"')), store_of(ConfigRecord("t", Config(normalize=True)))):
        assert written(store, "t", LONG, config=config)[0] == SchemaRecord(
            "t", store.next_version("t"), store.last_id() + 1, LONG
        )


def test_a_withdrawn_version_of_the_same_schema_is_removed_unless_it_is_needed() -> None:
    withdrawn = [stored("t", 1, 1, '"int"', deleted=True), stored("t", 2, 2, '"long"')]
    assert written(store_of(*withdrawn), "t", INT) == [SchemaRecord("t", 3, 1, INT), SchemaTombstone("t", 1)]
    needed = store_of(*withdrawn, stored("u", 1, 3, '"u"', ("n.T", "t", 1)))
    assert written(needed, "t", INT) == [SchemaRecord("t", 3, 1, INT)]


def test_references_get_numbers_and_must_be_live() -> None:
    store = store_of(stored("a", 1, 1, '"a"'), stored("a", 2, 2, '"b"'), stored("a", 3, 3, '"c"', deleted=True))
    made = register(store, "t", SchemaText('"int"', references=(Reference("n.A", "a", -1),)), Compared())
    assert made.schema.references == (Reference("n.A", "a", 2),)
    for version in (3, 4):
        with pytest.raises(RefusedError, match=rf"reference n.A \(a, version {version}\)") as caught:
            register(store, "t", SchemaText('"int"', references=(Reference("n.A", "a", version),)), Compared())
        assert caught.value.error_code == 42201
    store.apply(store.position, 0, *encode(stored("b", 1, 4, '"d"', ("n.A", "a", 3))))
    assert register(store, "t", SchemaText('"int"', references=(Reference("n.B", "b", 1),)), Compared()).records


@pytest.mark.parametrize("mode", [Mode.IMPORT, Mode.FORWARD])
def test_import_keeps_ids_and_versions(mode: Mode) -> None:
    store = store_of(ModeRecord(None, mode), stored("t", 1, 4, '"int"'))
    check = Compared()
    assert register(store, "t", LONG, check, schema_id=9, number=7).records == (SchemaRecord("t", 7, 9, LONG),)
    assert check.asked == []
    assert register(store, "u", INT, check, schema_id=4).records == (SchemaRecord("u", 1, 4, INT),)
    with pytest.raises(RefusedError, match=r"Overwrite new schema with id 4 in context \. is not permitted\."):
        register(store, "u", LONG, check, schema_id=4)


@pytest.mark.parametrize(
    ("mode", "numbers", "code", "text"),
    [
        (Mode.READONLY, {}, 42205, r"Subject t in context \. is in read-only mode"),
        (Mode.READONLY_OVERRIDE, {}, 42205, "is in read-only mode"),
        (Mode.READWRITE, {"schema_id": 3}, 42205, "is not in import mode"),
        (Mode.IMPORT, {}, 42205, "is not in read-write mode"),
        (Mode.READWRITE, {"number": 5}, 42201, "Version is not one more than previous version"),
    ],
)
def test_what_the_mode_does_not_allow(mode: Mode, numbers: dict[str, Any], code: int, text: str) -> None:
    with pytest.raises(RefusedError, match=text) as caught:
        register(store_of(ModeRecord("t", mode)), "t", INT, Compared(), **numbers)
    assert caught.value.error_code == code


@pytest.mark.parametrize("subject", ["a\nb", "\x00", "__GLOBAL", ":.c:__EMPTY", ":.__GLOBAL:t"])
def test_subjects_that_are_none(subject: str) -> None:
    with pytest.raises(RefusedError, match="is not a valid") as caught:
        register(SchemaStore(), subject, INT, Compared())
    assert caught.value.error_code == 42208


@pytest.mark.parametrize("subject", ["../../x", "a b", "a/b", "é", ":.c:t", "a:b"])
def test_subjects_that_are_some(subject: str) -> None:
    assert written(SchemaStore(), subject, INT)[-1] == SchemaRecord(subject, 1, 1, INT)


def test_the_last_id_is_not_passed() -> None:
    with pytest.raises(RefusedError, match="no id left"):
        register(store_of(stored("t", 1, 2**31 - 1, '"int"')), "t", LONG, Compared())
