"""Any prefix of the topic, replayed or compacted, gives the same answers as a model that knows only what was asked."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.schemas.compatibility import Compatibility
from klamm.schemas.store.config import Config, Mode
from klamm.schemas.store.records import (
    ConfigRecord,
    KeyValue,
    ModeRecord,
    Noop,
    Record,
    SchemaRecord,
    SchemaTombstone,
    SubjectClearing,
    SubjectDeletion,
    encode,
)
from klamm.schemas.store.registration import register
from klamm.schemas.store.schema import Metadata, Reference, SchemaText
from klamm.schemas.store.schema_store import SchemaStore, Which

SUBJECTS = ("a", "b", ":.c:a")
TEXTS = ('"int"', '"long"', '"string"', '"null"')
KINDS = ("register", "refer", "withdraw", "remove", "delete", "delete for good", "import", "set", "noop")
Operation = tuple[str, str, int]
operations = st.lists(
    st.tuples(
        st.sampled_from(
            ("register", "refer", "withdraw", "remove", "delete", "delete for good", "import", "set", "noop")
        ),
        st.sampled_from(SUBJECTS),
        st.integers(0, 7),
    ),
    max_size=30,
)


class Model:
    """What a registry does for each operation: the records that it writes, and which versions there are then."""

    def __init__(self) -> None:
        self.store = SchemaStore()
        self.log: list[KeyValue] = []
        self.versions: dict[tuple[str, int], tuple[SchemaText, int, bool]] = {}
        """Schema, id and whether it is withdrawn, by subject and version."""

    def write(self, *records: Record) -> None:
        for record in records:
            self.log.append(encode(record))
            self.store.apply(len(self.log) - 1, 0, *self.log[-1])

    def _is_needed(self, subject: str, version: int, *, by_own: bool) -> bool:
        """Returns True if another version refers to this one: a registry then refuses to remove it."""
        needed = (subject, version)
        return any(
            needed in ((one.subject, one.version) for one in schema.references)
            for (of, _), (schema, _, _) in self.versions.items()
            if by_own or of != subject
        )

    def run(self, name: str, subject: str, number: int) -> None:
        own = {version: held for (of, version), held in self.versions.items() if of == subject}
        live = [version for version, (_, _, withdrawn) in own.items() if not withdrawn]
        target = sorted(own)[number % len(own)] if own else 0
        one = name in ("withdraw", "remove")
        concerned = [target] if one else own if name in ("delete", "delete for good", "import") else []
        if any(self._is_needed(subject, version, by_own=one) for version in concerned):
            return
        if name == "register":
            self._register(subject, SchemaText(TEXTS[number % 4], metadata=Metadata() if number > 3 else None))
        elif name == "refer" and live:
            self._register("b", SchemaText(f'"of {target}"', references=(Reference("n.R", subject, live[-1]),)))
        elif name == "withdraw" and target in live:
            schema, schema_id, _ = own[target]
            self.versions[subject, target] = schema, schema_id, True
            self.write(SchemaRecord(subject, target, schema_id, schema, deleted=True))
        elif name == "remove" and own and target not in live:
            del self.versions[subject, target]
            self.write(SchemaTombstone(subject, target))
        elif name == "delete" and live:
            for version in live:
                self.versions[subject, version] = (*own[version][:2], True)
            self.write(SubjectDeletion(subject, max(own)))
        elif name == "delete for good" and own and not live:
            for version in own:
                del self.versions[subject, version]
            self.write(*(SchemaTombstone(subject, version) for version in sorted(own, reverse=True)))
        elif name == "import" and not live:
            for version in own:
                del self.versions[subject, version]
            self.write(*(SchemaTombstone(subject, version) for version in own), SubjectClearing(subject))
        elif name == "set":
            level = list(Compatibility)[number % 7]
            mode = None if number > 5 else Mode.READWRITE
            self.write(ConfigRecord(subject, Config(compatibility_level=level)), ModeRecord(subject, mode))
        elif name == "noop":
            self.write(Noop())

    def _register(self, subject: str, schema: SchemaText) -> None:
        made = register(self.store, subject, schema, lambda *_: None)
        for record in made.records:
            if isinstance(record, SchemaTombstone):
                del self.versions[subject, record.version]
        self.versions[subject, made.version] = made.schema, made.schema_id, False
        self.write(*made.records)


def answers(store: SchemaStore) -> dict[str, Any]:
    """Returns everything that a store answers but `last_id`."""
    found: dict[str, Any] = {"contexts": store.contexts(), "configs": store.configs(), "modes": store.modes()}
    for which in Which:
        found[f"subjects {which}"] = store.subjects(which=which)
        found[f"schemas {which}"] = list(store.schemas(":*:", which))
        for subject in SUBJECTS:
            found[f"{subject} {which}"] = store.versions(subject, which)
            found[f"latest {subject} {which}"] = store.latest(subject, which)
            for version in store.versions(subject, which):
                found[f"{subject} {version.version} {which}"] = store.referenced_by(subject, version.version, which)
    for version in store.schemas(":*:", Which.ALL):
        context, schema_id = version.context, version.schema_id
        found[f"id {context} {schema_id}"] = store.by_id(schema_id, context), store.by_guid(version.guid)
        found[f"schema {context} {schema_id}"] = store.schema(schema_id, context)
        found[f"equal {version.schema}"] = store.id_of(version.schema, context)
    found["next"] = [store.next_version(subject) for subject in SUBJECTS]
    return found


def replayed(log: list[tuple[int, KeyValue]]) -> SchemaStore:
    store = SchemaStore()
    for offset, record in log:
        store.apply(offset, 0, *record)
    return store


def compacted(log: list[KeyValue], dirty_from: int, *, tombstones: bool) -> list[tuple[int, KeyValue]]:
    """The log as compaction leaves it: below `dirty_from` only the last record of a key, at its offset."""
    last = {key: offset for offset, (key, _) in enumerate(log[:dirty_from])}
    return [
        (offset, record)
        for offset, record in enumerate(log)
        if offset >= dirty_from or (last[record[0]] == offset and (tombstones or record[1] is not None))
    ]


@settings(max_examples=60, deadline=None)
@given(given_=operations, cut=st.floats(0, 1), again=st.floats(0, 1))
def test_replay_and_compaction_change_no_answer(given_: list[Operation], cut: float, again: float) -> None:
    model = Model()
    for operation in given_:
        model.run(*operation)
    log, store = model.log, model.store
    whole = list(enumerate(log))
    assert store.stray_count == 0
    assert answers(replayed(whole)) == answers(store)
    place, back = round(cut * len(log)), round(cut * again * len(log))
    prefix = replayed(whole[:place])
    for offset, record in whole[back:]:  # a follower that begins again before its place
        prefix.apply(offset, 0, *record)
    assert answers(prefix) == answers(store)
    for tombstones in (True, False):
        left = replayed(compacted(log, place, tombstones=tombstones))
        assert answers(left) == answers(store)
        for context in store.contexts():
            assert left.last_id(context) <= store.last_id(context)
    prefix.clear()
    assert answers(prefix) == answers(SchemaStore())


@settings(max_examples=60, deadline=None)
@given(given_=operations)
def test_the_answers_are_the_models(given_: list[Operation]) -> None:
    model = Model()
    given_ids: dict[tuple[str, int], str] = {}
    for operation in given_:
        model.run(*operation)
        found = {
            (one.subject, one.version): (one.schema, one.schema_id, one.deleted)
            for one in model.store.schemas(":*:", Which.ALL)
        }
        assert found == model.versions
        for one in model.store.schemas(":*:", Which.ALL):
            assert given_ids.setdefault((one.context, one.schema_id), one.guid) == one.guid  # no id is given again
            assert model.store.last_id(one.context) >= one.schema_id
