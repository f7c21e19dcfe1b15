"""Random histories of requests to two registries of one topic, beside a model that knows what was answered.

Whatever is asked: an id is never given to two schemas, not after a removal, a compaction or a restart; a version number
of a subject is never given twice while the subject exists; lists agree with what was answered; a registry that starts
again answers as one that has run all along.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from klamm.schemas import formats
from klamm.schemas.refusals import RefusedError
from klamm.schemas.service.api import RegistryApi
from klamm.schemas.service.config import RegistryConfig
from klamm.schemas.service.query import Query
from klamm.schemas.service.topic import Decide, T
from klamm.schemas.store.records import KeyValue, SchemaTombstone, SubjectClearing, encode
from klamm.schemas.store.schema_store import SchemaStore, Which
from klamm.schemas.store.subjects import context_of
from klammtest.fuzz import fuzzed

SUBJECTS = st.sampled_from(("a", "b", ":.c:a"))
SCOPES = st.sampled_from(("a", "b", ":.c:a", ":.c:", None))
NUMBERS = st.integers(0, 4).map(lambda number: str(number) if number else "latest")
MODES = st.sampled_from(("READWRITE", "READWRITE", "READONLY", "IMPORT", "FORWARD"))
FIELDS = st.sets(st.sampled_from("xyz"), max_size=2)


def text_of(fields: set[str], default: bool) -> str:
    made = [{"name": name, "type": "int", **({"default": 0} if default else {})} for name in sorted(fields)]
    return json.dumps({"type": "record", "name": "R", "fields": made})


class MemoryTopic:
    """`SchemaTopic` over a log in memory. `kept`: the highest ids, as the coordination has them."""

    def __init__(self, log: list[KeyValue], kept: dict[str, int]) -> None:
        self._log = log
        self._kept = kept
        self._store = SchemaStore()
        self.catch_up()

    def catch_up(self) -> None:
        for offset in range(self._store.position, len(self._log)):
            self._store.apply(offset, 0, *self._log[offset])
        for context, last in self._kept.items():
            self._store.raise_last_id(context, last)

    @contextmanager
    def store(self) -> Iterator[SchemaStore]:
        yield self._store

    def write(self, decide: Decide[T], check: Callable[[T], None] | None = None) -> T:
        self.catch_up()
        records, found = decide(self._store)
        if check is not None:
            check(found)
        if any(isinstance(record, SchemaTombstone | SubjectClearing) for record in records):
            for context, last in self._store.last_ids().items():
                self._kept[context] = max(last, self._kept.get(context, 0))
        self._log.extend(map(encode, records))
        self.catch_up()
        return found


def state(topic: MemoryTopic) -> Any:
    """Returns everything that a registry can answer."""
    with topic.store() as store:
        return (
            [(one.subject, one.version, one.schema_id, one.deleted) for one in store.schemas(":*:", Which.ALL)],
            store.configs(), store.modes(), store.contexts(), store.stray_count,
        )  # fmt: skip


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[KeyValue] = []
        self.kept: dict[str, int] = {}
        self.topics = [MemoryTopic(self.log, self.kept) for _ in range(2)]
        self.ids: dict[tuple[str, int], str] = {}
        """The guid of each id that was ever answered, by context and id."""
        self.versions: dict[str, dict[int, tuple[int, bool]]] = {}
        """Id, and whether it is live, of each version of a subject."""

    def call(self, registry: int, request: Callable[[RegistryApi], Any]) -> Any:
        """Returns the answer, None for a refusal."""
        self.topics[registry].catch_up()
        api = RegistryApi(self.topics[registry], RegistryConfig())  # type: ignore[arg-type]
        try:
            return request(api)
        except RefusedError as error:
            refused = error
        assert 40400 <= refused.error_code < 50000 or refused.error_code == 422
        assert "\n" not in str(refused)
        return None

    registry = st.integers(0, 1)

    @rule(
        registry=registry, subject=SUBJECTS, fields=FIELDS, default=st.booleans(), force=st.booleans(),
        numbers=st.fixed_dictionaries({}, optional={"id": st.integers(1, 9), "version": st.integers(-1, 5)}),
        refers=st.booleans(),
    )  # fmt: skip
    def register(
        self, registry: int, subject: str, fields: set[str], default: bool, force: bool, numbers: Any, refers: bool
    ) -> None:
        body = {"schema": text_of(fields, default), **numbers}
        if refers:
            body["references"] = [{"name": "q.Q", "subject": "b", "version": 1}]
        query = Query(f"force={force}".encode())
        answer = self.call(registry, lambda api: api.register(subject, query, body))
        if answer is not None:
            context, number, schema_id = context_of(subject), answer["version"], answer["id"]
            assert self.ids.setdefault((context, schema_id), answer["guid"]) == answer["guid"]
            known = self.versions.setdefault(subject, {})
            old = known.get(number)
            assert old is None or old[0] == schema_id, "a version is another schema's"
            assert old is not None or "id" in numbers or number == max(known, default=0) + 1
            known[number] = (schema_id, True)
            with self.topics[registry].store() as store:  # a withdrawn version of the same schema was removed
                for other in set(known) - {one.version for one in store.versions(subject, Which.ALL)}:
                    assert known[other] == (schema_id, False)
                    del known[other]

    @rule(registry=registry, subject=SUBJECTS, number=NUMBERS, permanent=st.booleans())
    def delete_version(self, registry: int, subject: str, number: str, permanent: bool) -> None:
        query = Query(f"permanent={permanent}".encode())
        answer = self.call(registry, lambda api: api.delete_version(subject, number, query))
        if answer is not None:
            self.removed(subject, [answer], permanent)

    @rule(registry=registry, subject=SUBJECTS, permanent=st.booleans())
    def delete_subject(self, registry: int, subject: str, permanent: bool) -> None:
        query = Query(f"permanent={permanent}".encode())
        answer = self.call(registry, lambda api: api.delete_subject(subject, query))
        if answer is not None:
            self.removed(subject, answer, permanent)

    def removed(self, subject: str, numbers: Sequence[int], permanent: bool) -> None:
        for number in numbers:
            schema_id, live = self.versions[subject][number]
            assert live is not permanent, "only a withdrawn version is removed for good"
            if permanent:
                del self.versions[subject][number]
            else:
                self.versions[subject][number] = (schema_id, False)

    @rule(registry=registry, scope=SCOPES, level=st.sampled_from(("NONE", "FULL", "BACKWARD_TRANSITIVE", "?")))
    def configure(self, registry: int, scope: str | None, level: str) -> None:
        self.call(registry, lambda api: api.set_config(scope, Query(), {"compatibility": level}))

    @rule(registry=registry, scope=SCOPES)
    def delete_config(self, registry: int, scope: str | None) -> None:
        self.call(registry, lambda api: api.delete_config(scope, Query()))

    @rule(registry=registry, scope=SCOPES, mode=MODES, force=st.booleans())
    def set_mode(self, registry: int, scope: str | None, mode: str, force: bool) -> None:
        query = Query(f"force={force}".encode())
        if self.call(registry, lambda api: api.set_mode(scope, query, {"mode": mode})) and mode == "IMPORT":
            with self.topics[registry].store() as store:  # what was withdrawn there may be forgotten
                for subject, known in self.versions.items():
                    left = {one.version for one in store.versions(subject, Which.ALL)}
                    assert all(not known[number][1] for number in set(known) - left)
                    self.versions[subject] = {number: one for number, one in known.items() if number in left}

    @rule(registry=registry, scope=SCOPES, recursive=st.booleans())
    def delete_mode(self, registry: int, scope: str | None, recursive: bool) -> None:
        self.call(registry, lambda api: api.delete_mode(scope, Query(f"recursive={recursive}".encode())))

    @rule(registry=registry, subject=SUBJECTS, fields=FIELDS, default=st.booleans())
    def look_up(self, registry: int, subject: str, fields: set[str], default: bool) -> None:
        body = {"schema": text_of(fields, default)}
        answer = self.call(registry, lambda api: api.look_up(subject, Query(), body))
        if answer is not None:
            assert self.versions[answer["subject"]][answer["version"]] == (answer["id"], True)
            assert self.call(registry, lambda api: api.compare_with_all(subject, Query(), body)) is not None

    @rule(registry=registry, subject=SUBJECTS, number=NUMBERS)
    def show(self, registry: int, subject: str, number: str) -> None:
        answer = self.call(registry, lambda api: api.version(subject, number, Query()))
        if answer is not None:
            assert self.versions[answer["subject"]][answer["version"]] == (answer["id"], True)

    @rule(registry=registry, compacted=st.booleans())
    def restart(self, registry: int, compacted: bool) -> None:
        self.topics[registry].catch_up()
        before = state(self.topics[registry])
        if compacted:
            last = {key: offset for offset, (key, _) in enumerate(self.log)}
            self.log[:] = [
                one if last[one[0]] == offset else (b'{"keytype":"NOOP","magic":0}', None)
                for offset, one in enumerate(self.log)
            ]
        self.topics[registry] = MemoryTopic(self.log, self.kept)
        assert state(self.topics[registry]) == before

    @invariant()
    def lists_agree(self) -> None:
        for topic in self.topics:
            topic.catch_up()
        assert state(self.topics[0]) == state(self.topics[1])
        with self.topics[0].store() as store:
            for subject in ("a", "b", ":.c:a"):
                found = {one.version: (one.schema_id, not one.deleted) for one in store.versions(subject, Which.ALL)}
                assert found == self.versions.get(subject, {})
            assert store.subjects() == sorted(
                name for name, known in self.versions.items() if any(live for _, live in known.values())
            )
            assert store.stray_count == 0
            for (context, schema_id), guid in self.ids.items():
                held = store.schema(schema_id, context)
                assert held is None or held.guid == guid
                assert schema_id <= store.last_id(context)


class GuardedTopic(MemoryTopic):
    """Counts who has the store."""

    holders = 0

    @contextmanager
    def store(self) -> Iterator[SchemaStore]:
        self.holders += 1
        try:
            yield self._store
        finally:
            self.holders -= 1


@pytest.mark.parametrize("form", ["AVRO", "JSON", "PROTOBUF"])
def test_a_text_that_is_sent_is_read_without_the_store(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = {"AVRO": '"int"', "JSON": '{"type":"integer"}', "PROTOBUF": 'syntax = "proto3"; message A {}'}[form]
    topic, body = GuardedTopic([], {}), {"schema": text, "schemaType": form}
    api = RegistryApi(topic, RegistryConfig())  # type: ignore[arg-type]
    api.register("s", Query(), body)
    read: list[int] = []

    def reading(*given: Any, **more: Any) -> Any:
        read.append(topic.holders)
        return formats.parsed(*given, **more)

    monkeypatch.setattr("klamm.schemas.service.api.parsed", reading)
    assert api.look_up("s", Query(), body)["version"] == 1
    assert api.compare_with_all("s", Query(), body) == {"is_compatible": True}
    assert read == [0, 0]


Histories.TestCase.settings = fuzzed(40)
TestHistories = Histories.TestCase
