"""The answers of the table of schemas, and what stray records do to it: nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from klamm.core.errors import SchemaError
from klamm.schemas.compatibility import Compatibility
from klamm.schemas.store import schema_store
from klamm.schemas.store.config import Config, Mode
from klamm.schemas.store.records import (
    ConfigRecord,
    ContextRecord,
    ModeRecord,
    Record,
    SchemaTombstone,
    SubjectClearing,
    SubjectDeletion,
    encode,
)
from klamm.schemas.store.registration import DEFAULTS
from klamm.schemas.store.schema import Metadata, Reference, SchemaText, text_md5
from klamm.schemas.store.schema_store import MAX_DEPTH, SchemaStore, Which
from klammtest.schemas import foreign, store_of, stored


def numbers(store: SchemaStore, subject: str = "t", which: Which = Which.LIVE) -> list[int]:
    return [one.version for one in store.versions(subject, which)]


def test_versions_ids_and_guids() -> None:
    store = store_of(
        stored("t", 1, 1, '"int"'), stored("t", 2, 2, '"long"'), stored("u", 1, 1, '"int"'), stored("u", 3, 3, '"null"')
    )
    assert (store.subjects(), numbers(store), numbers(store, "u"), numbers(store, "x")) == (
        ["t", "u"],
        [1, 2],
        [1, 3],
        [],
    )
    latest = store.latest("t")
    assert latest is not None
    assert (latest.version, latest.schema_id, latest.offset, latest.timestamp_ms) == (2, 2, 1, 1_001)
    assert [(one.subject, one.version) for one in store.by_id(1)] == [("t", 1), ("u", 1)]
    assert store.schema(1) == store.version("t", 1)
    assert [store.schema(9), store.version("t", 9), store.latest("x"), store.id_of(SchemaText('"x"'))] == [None] * 4
    assert store.by_guid(latest.guid) == [(".", 2)]
    assert store.id_of(SchemaText('"long"')) == 2
    assert store.by_md5(text_md5('"long"')) == [2]
    assert store.find("u", SchemaText('"int"')) == store.version("u", 1)
    assert store.find("t", SchemaText('"null"')) is None
    assert (store.next_version("u"), store.next_version("x"), store.last_id(), store.ids()) == (4, 1, 3, [1, 2, 3])


WITHDRAWN = replace(stored("t", 2, 2, '"long"'), deleted=True)


def test_a_withdrawn_version_is_not_the_newest_and_its_id_resolves() -> None:
    store = store_of(stored("t", 1, 1, '"int"'), stored("t", 2, 2, '"long"'), WITHDRAWN)
    assert (numbers(store), numbers(store, which=Which.ALL), numbers(store, which=Which.DELETED)) == ([1], [1, 2], [2])
    latest, held = store.latest("t"), store.schema(2)
    assert latest == store.version("t", 1)
    assert held == store.version("t", 2, Which.DELETED)
    assert store.find("t", SchemaText('"long"')) is None
    assert store.find("t", SchemaText('"long"'), Which.ALL) == held
    assert store.next_version("t") == 3


def test_a_subject_is_withdrawn_by_position() -> None:
    store = store_of(
        stored("t", 1, 1, '"int"'), stored("t", 2, 2, '"long"'), SubjectDeletion("t", 2), stored("t", 2, 2, '"long"')
    )
    assert numbers(store) == [2]
    store = store_of(stored("t", 1, 1, '"int"'), SubjectDeletion("t", 1))
    assert (store.subjects(), store.subjects(which=Which.ALL), store.subjects(which=Which.DELETED)) == (
        [],
        ["t"],
        ["t"],
    )
    assert (store.has_subject("t"), store.has_subject("t", Which.ALL), store.has_subject("x", Which.ALL)) == (
        False, True, False,
    )  # fmt: skip


def test_a_removed_version_is_gone_and_its_id_is_not_given_again() -> None:
    store = store_of(stored("t", 1, 1, '"int"'), stored("t", 2, 2, '"long"'), WITHDRAWN, SchemaTombstone("t", 2))
    assert (numbers(store, which=Which.ALL), store.schema(2), store.by_md5(text_md5('"long"'))) == ([1], None, [])
    assert (store.id_of(SchemaText('"long"')), store.last_id(), store.next_version("t")) == (None, 2, 2)
    store.apply(store.position, 0, *encode(SchemaTombstone("t", 1)))
    assert (store.subjects(which=Which.ALL), store.next_version("t"), store.last_id()) == ([], 1, 2)
    store.apply(store.position, 0, *encode(stored("u", 1, 1, '"int"')))
    assert (store.ids(), store.last_id()) == ([1], 2)


def test_clearing_forgets_withdrawn_versions_alone() -> None:
    records: list[Record] = [stored("t", 1, 1, '"int"'), stored("t", 2, 2, '"long"'), WITHDRAWN]
    for scope in ("t", "", ":.__GLOBAL:"):
        assert numbers(store_of(*records, SubjectClearing(scope)), which=Which.ALL) == [1]
    for scope in ("u", ":.c:"):
        assert numbers(store_of(*records, SubjectClearing(scope)), which=Which.ALL) == [1, 2]


def test_contexts_count_their_own_ids() -> None:
    store = store_of(
        stored("t", 1, 1, '"int"'),
        ContextRecord(".c"),
        stored(":.c:t", 1, 1, '"long"'),
        stored(":.d:tt", 1, 5, '"int"'),
    )
    assert store.contexts() == [".", ".c", ".d"]
    assert (store.last_id(), store.last_id(".c"), store.last_id(".d"), store.last_id(".e")) == (1, 1, 5, 0)
    assert store.schema(1, ".c") == store.version(":.c:t", 1)
    assert (store.schema(1, ".e"), store.by_id(1, ".e"), store.by_md5(b"", ".e")) == (None, [], [])
    assert store.by_guid(SchemaText('"int"').guid()) == [(".", 1), (".d", 5)]
    assert store.subjects() == [":.c:t", ":.d:tt", "t"]
    assert store.subjects("t") == ["t"]
    assert store.subjects(":.c:") == [":.c:t"]
    assert store.subjects(":*:t") == [":.c:t", ":.d:tt", "t"]
    assert store.subjects(":*:tt") == [":.d:tt"]
    assert [one.subject for one in store.schemas()] == ["t"]


def test_a_list_of_schemas() -> None:
    store = store_of(stored("t", 1, 1, '"int"'), stored("t", 2, 2, '"long"'), WITHDRAWN, stored("u", 1, 1, '"int"'))
    assert [(one.subject, one.version) for one in store.schemas()] == [("t", 1), ("u", 1)]
    assert [(one.subject, one.version) for one in store.schemas(which=Which.ALL)] == [("t", 1), ("t", 2), ("u", 1)]
    assert [one.version for one in store.schemas("t", Which.ALL, latest_only=True)] == [2]


def test_the_newest_version_with_metadata() -> None:
    store = SchemaStore()
    for number, owner in enumerate(("ann", "bob", "ann"), 1):
        schema = SchemaText(f'"{number}"', metadata=Metadata(properties=(("owner", owner), ("v", str(number)))))
        store.apply(number, 0, *encode(replace(stored("t", number, number, ""), schema=schema)))
    for wanted, version in (
        ({"owner": "ann"}, 3),
        ({"owner": "bob"}, 2),
        ({"owner": "ann", "v": "1"}, 1),
        ({"x": ""}, None),
    ):
        found = store.with_metadata("t", wanted)
        assert (found and found.version) == version


def test_references_in_both_directions() -> None:
    store = store_of(
        stored("a", 1, 1, '"a"'),
        stored("b", 1, 2, '"b"', ("n.A", "a", 1)),
        stored("c", 1, 3, '"c"', ("n.B", "b", 1), ("n.A", "a", 1)),
        stored("c", 2, 4, '"d"', ("n.B", "b", 1)),
        stored(":.x:a", 1, 1, '"xa"'),
        stored(":.x:b", 1, 2, '"xb"', ("n.A", "a", 1)),
    )
    assert [(one.subject, one.version) for one in store.referenced_by("b", 1)] == [("c", 1), ("c", 2)]
    assert [one.subject for one in store.referenced_by("a", 1)] == ["b", "c"]
    assert [one.subject for one in store.referenced_by(":.x:a", 1)] == [":.x:b"]
    found = store.resolve("c", [Reference("n.B", "b", 1), Reference("n.A", "a", -1)])
    assert [(one.name, version.schema.text) for one, version in found] == [("n.A", '"a"'), ("n.B", '"b"')]
    store.apply(store.position, 0, *encode(replace(stored("c", 2, 4, '"d"', ("n.B", "b", 1)), deleted=True)))
    assert [one.version for one in store.referenced_by("b", 1)] == [1]
    assert [one.version for one in store.referenced_by("b", 1, Which.ALL)] == [1, 2]
    store.apply(store.position, 0, *encode(SchemaTombstone("c", 2)))
    assert [one.version for one in store.referenced_by("b", 1, Which.ALL)] == [1]


def test_references_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = store_of(*(stored("s", i, i, f'"{i}"', *([(f"n{i}", "s", i - 1)] if i > 1 else [])) for i in range(1, 100)))
    with pytest.raises(SchemaError, match=f"more than {MAX_DEPTH} within each other"):
        deep.resolve("s", [Reference("top", "s", 99)])
    monkeypatch.setattr(schema_store, "MAX_RESOLVED", 1000)
    wide = store_of(stored("s", 1, 1, "x" * 900), stored("s", 2, 2, "y" * 900))
    with pytest.raises(SchemaError, match="is longer than 1000 characters"):
        wide.resolve("s", [Reference("a", "s", 1), Reference("b", "s", 2)])
    doubled = store_of(
        *(
            stored("s", i, i, f'"{i}"', *([(f"n{i}", "s", i - 1), (f"m{i}", "s", i - 1)] if i > 1 else []))
            for i in range(1, 60)
        )
    )  # 2^58 paths
    assert len(doubled.resolve("s", [Reference("top", "s", 59)])) == 117


def test_stray_records_are_reported_and_change_nothing() -> None:
    store = store_of(
        stored("t", 1, 1, '"int"'), (b"{", b""), stored("u", 1, 1, '"other"'), (encode(WITHDRAWN)[0], b"{"),
        stored("t", 2, 2, '"long"'),
    )  # fmt: skip
    assert numbers(store) == [1, 2]
    assert numbers(store, "u") == []
    assert store.stray_count == 3
    assert [str(one) for one in store.stray()][1:] == [
        "offset 2 (subject 'u', version 1, id 1): its id is that of another text, version 1 of t",
        "offset 3 (subject 't', version 2): the value is not JSON: Expecting property name enclosed in double quotes: "
        "line 1 column 2 (char 1)",
    ]
    assert store.position == 5
    store.apply(4, 0, *encode(SchemaTombstone("t", 1)))  # applied before
    assert numbers(store) == [1, 2]


def test_what_is_set_holds_by_scope() -> None:
    def level(name: str) -> Config:
        return Config(compatibility_level=Compatibility(name))

    def scope(subject: str | None) -> str | None:
        return store.config_in_scope(subject, DEFAULTS).compatibility_level

    store = store_of(
        ConfigRecord("t", Config(normalize=True)),
        ConfigRecord("u", level("FULL")),
        ConfigRecord(":.c:", level("FORWARD")),
        ModeRecord("t", Mode.READONLY),
        ModeRecord(":.c:", Mode.IMPORT),
    )
    assert [scope(one) for one in ("t", "u", "x", ":.c:x", ":.d:x", None)] == [
        "BACKWARD", "FULL", "BACKWARD", "FORWARD", "BACKWARD", "BACKWARD",
    ]  # fmt: skip
    assert [store.mode_in_scope(one) for one in ("t", "x", ":.c:x", ":.d:x")] == [
        "READONLY", "READWRITE", "IMPORT", "READWRITE",
    ]  # fmt: skip
    more: list[Record] = [
        ConfigRecord(None, Config(validate_fields=True)),
        ConfigRecord(":.__GLOBAL:", level("NONE")),
        ModeRecord("t", None),
        ModeRecord(":.__GLOBAL:", Mode.READONLY_OVERRIDE),
        ConfigRecord("u", Config(alias="t")),
    ]
    for record in more:
        store.apply(store.position, 0, *encode(record))
    assert store.config_in_scope("t", DEFAULTS) == Config(
        normalize=True, validate_fields=True, compatibility_level=Compatibility.BACKWARD
    )
    assert scope(":.d:x") == "NONE"
    assert [store.mode_in_scope(one) for one in ("t", ":.c:x", ":.d:x")] == [
        "READONLY_OVERRIDE",
        "IMPORT",
        "READONLY_OVERRIDE",
    ]
    assert (store.alias_of("u"), store.alias_of("t")) == ("t", "t")
    assert (store.config("x"), store.mode("t"), set(store.configs()), set(store.modes())) == (
        None, None, {"t", "u", ":.c:", None, ":.__GLOBAL:"}, {":.c:", ":.__GLOBAL:"},
    )  # fmt: skip


def test_subjects_that_are_no_utf_8_stop_nothing() -> None:
    store = store_of(foreign("\ud800", 1, 1, '"\ud800"'), stored("t", 1, 2, '"int"'))
    assert store.subjects() == ["t", "\ud800"]
    assert store.by_md5(text_md5('"\ud800"')) == [1]
    assert store.stray_count == 0
