"""The endpoints of the registry, without HTTP: what each reads, writes and answers.

A reader answers from the store in memory. A writer decides on the topic's end and appends there, or decides again
(`topic`). A subject may be an alias in requests about schemas, and not in those about configurations and modes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final
from uuid import UUID

from klamm.core.errors import SchemaError

from .. import refusals
from ..comparing import OldVersion, Requirement, messages
from ..compatibility import Compatibility
from ..differences import CompatibilityPolicy
from ..formats import FORMATS, AvroText, Text, parsed
from ..names import AVRO, PROTOBUF
from ..refusals import RefusedError
from ..store.config import Config, Mode
from ..store.records import (
    ConfigRecord,
    ContextRecord,
    ModeRecord,
    Record,
    SchemaRecord,
    SchemaTombstone,
    SubjectClearing,
    SubjectDeletion,
)
from ..store.registration import NewVersion, refuse_read_only, register, with_numbers
from ..store.schema import Pairs, Reference, SchemaText
from ..store.schema_store import SchemaStore, SchemaVersion, Which
from ..store.subjects import (
    ALL_CONTEXTS,
    DEFAULT_CONTEXT,
    context_of,
    in_scope,
    is_valid,
    qualified,
    split,
)
from .config import RegistryConfig
from .query import Query
from .rules import changed_rules, check_rules, completed
from .tags import TagChanges, tagged
from .topic import Decide, SchemaTopic

Answer = Any
"""What JSON can hold."""
LATEST: Final = -1
Comparison = Callable[[], list[str]]
"""Compares a schema with the versions before it; returns the messages of `comparing`."""
_Registration = tuple[NewVersion, list[Comparison]]


class RegistryApi:
    """Thread-safe. All methods raise `RefusedError` for what is refused."""

    def __init__(self, topic: SchemaTopic, config: RegistryConfig) -> None:
        self._topic = topic
        self._options = config
        self._defaults = config.defaults()

    # -- schemas by id

    def schema_types(self) -> Answer:
        return list(FORMATS)

    def by_id(self, schema_id: str, query: Query) -> Answer:
        number = _id(schema_id)
        with self._topic.store() as store:
            version = self._of_id(store, number, query.text("subject"))
            answer = self._described(store, version, query)
            if not query.text("subject"):
                answer = {key: answer[key] for key in answer if key not in ("subject", "version", "id", "deleted")}
            if query.flag("fetchMaxId"):
                answer["maxId"] = store.last_id(version.context)
            return answer

    def text_by_id(self, schema_id: str, query: Query) -> str:
        with self._topic.store() as store:
            version = self._of_id(store, _id(schema_id), query.text("subject"))
            return self._text(store, version, query.text("format"))

    def subjects_of_id(self, schema_id: str, query: Query) -> Answer:
        with self._topic.store() as store:
            found = self._versions_of_id(store, _id(schema_id), query)
            return query.page(sorted({version.subject for version in found}))

    def versions_of_id(self, schema_id: str, query: Query) -> Answer:
        with self._topic.store() as store:
            found = sorted(
                self._versions_of_id(store, _id(schema_id), query), key=lambda one: (one.subject, one.version)
            )
            return query.page([{"subject": one.subject, "version": one.version} for one in found])

    def by_guid(self, guid: str, query: Query) -> Answer:
        with self._topic.store() as store:
            context, schema_id = self._ids_of_guid(store, guid)[0]
            version = store.schema(schema_id, context)
            assert version is not None
            answer = self._described(store, version, query)
            return {key: answer[key] for key in answer if key not in ("subject", "version", "id", "deleted")}

    def ids_of_guid(self, guid: str, query: Query) -> Answer:
        with self._topic.store() as store:
            found = self._ids_of_guid(store, guid)
        return query.page([{"context": context, "id": schema_id} for context, schema_id in found])

    def schemas(self, query: Query) -> Answer:
        which = Which.ALL if query.flag("deleted") else Which.LIVE
        with self._topic.store() as store:
            found = store.schemas(query.text("subjectPrefix") or "", which, latest_only=query.flag("latestOnly"))
            rows = query.page(list(found), self._options.schema_search_default_limit)
            return [self._described(store, version, query) for version in rows]

    def _of_id(self, store: SchemaStore, schema_id: int, subject: str) -> SchemaVersion:
        version = store.schema(schema_id, context_of(subject))
        if subject:
            named = [one for one in store.by_id(schema_id, context_of(subject)) if one.subject == subject]
            version = next((one for one in named if not one.deleted), named[0] if named else version)
        if version is None and subject and context_of(subject) == DEFAULT_CONTEXT:
            beside = (one for context in store.contexts() for one in store.by_id(schema_id, context))
            version = next((one for one in beside if split(one.subject)[1] == subject), None)
        if version is None:
            raise refusals.schema_id_not_found(schema_id)
        return version

    def _versions_of_id(self, store: SchemaStore, schema_id: int, query: Query) -> list[SchemaVersion]:
        context = context_of(query.text("subject"))
        if store.schema(schema_id, context) is None:
            raise refusals.schema_id_not_found(schema_id)
        found = store.by_id(schema_id, context, Which.ALL if query.flag("deleted") else Which.LIVE)
        wanted = split(query.text("subject"))[1]
        return [one for one in found if not wanted or one.subject == query.text("subject")]

    def _ids_of_guid(self, store: SchemaStore, guid: str) -> list[tuple[str, int]]:
        try:
            found = store.by_guid(str(UUID(guid)))
        except ValueError:
            found = []
        if not found:
            raise refusals.guid_not_found()
        return found

    # -- subjects and versions

    def subjects(self, query: Query) -> Answer:
        which = Which.DELETED if query.flag("deletedOnly") else Which.ALL if query.flag("deleted") else Which.LIVE
        with self._topic.store() as store:
            return query.page(store.subjects(query.text("subjectPrefix", ALL_CONTEXTS), which))

    def versions(self, subject: str, query: Query) -> Answer:
        which = Which.DELETED if query.flag("deletedOnly") else Which.ALL if query.flag("deleted") else Which.LIVE
        signed = query.flag("deletedAsNegative")
        with self._topic.store() as store:
            name = store.alias_of(_valid(subject))
            found = store.versions(name, Which.ALL if signed else which)
            if not found:
                raise refusals.subject_not_found(name)
            return query.page([-one.version if signed and one.deleted else one.version for one in found])

    def version(self, subject: str, version: str, query: Query) -> Answer:
        with self._topic.store() as store:
            found = self._version(store, subject, version, query)
            return self._described(store, found, query)

    def version_text(self, subject: str, version: str, query: Query) -> str:
        with self._topic.store() as store:
            return self._text(store, self._version(store, subject, version, query), query.text("format"))

    def referenced_by(self, subject: str, version: str, query: Query) -> Answer:
        which = Which.ALL if query.flag("deleted") else Which.LIVE
        with self._topic.store() as store:
            found = self._version(store, subject, version, query)
            ids = {one.schema_id for one in store.referenced_by(found.subject, found.version, which)}
            return query.page(sorted(ids))

    def with_metadata(self, subject: str, query: Query) -> Answer:
        which = Which.ALL if query.flag("deleted") else Which.LIVE
        properties = dict(zip(query.all("key"), query.all("value"), strict=False))
        with self._topic.store() as store:
            name = store.alias_of(_valid(subject))
            if not store.has_subject(name, which):
                raise refusals.subject_not_found(name)
            found = store.with_metadata(name, properties, which)
            if found is None:
                raise refusals.schema_not_found()
            return self._described(store, found, query)

    def look_up(self, subject: str, query: Query, body: Mapping[str, Any]) -> Answer:
        """Returns the version of the subject that has the sent schema."""
        which = Which.ALL if query.flag("deleted") else Which.LIVE
        with self._topic.store() as store:
            name = store.alias_of(_valid(subject))
            given = with_numbers(store, name, _schema(body))
            references = self._references(store, name, given.references)
        text = _read(given.schema_type, given.text, references, new=False)  # without the store: it may take long
        text.canonical  # noqa: B018
        with self._topic.store() as store:
            for candidate in self._beside(store, name):
                if not store.has_subject(candidate, Which.ALL if which is Which.ALL else Which.LIVE):
                    continue
                found = self._equal(store, candidate, given, text, query, which)
                if found is not None:
                    return self._described(store, found, query)
            if not any(store.has_subject(candidate, which) for candidate in self._beside(store, name)):
                raise refusals.subject_not_found(name)
        raise refusals.schema_not_found()

    def _equal(
        self, store: SchemaStore, subject: str, given: SchemaText, text: Text, query: Query, which: Which
    ) -> SchemaVersion | None:
        latest = store.latest(subject, which)
        normalize = query.flag("normalize") or bool(self._config(store, subject).normalize)
        forms = [replace(given, text=text.normalized if normalize else text.canonical)]
        if latest is not None and given.metadata is None and given.rule_set is None:
            forms.append(replace(forms[0], metadata=latest.schema.metadata, rule_set=latest.schema.rule_set))
        for form in forms:
            found = store.find(subject, form, which)
            if found is not None:
                return found
        if given.references or given.schema_type != AVRO:
            return None
        for version in reversed(store.versions(subject, which)):  # its references may be written out in the text
            if version.schema.references and self._resolved(store, version) == forms[0].text:
                return version
        return None

    def _beside(self, store: SchemaStore, subject: str) -> list[str]:
        """Returns the subject, and those of its name in other contexts if it names none."""
        if context_of(subject) != DEFAULT_CONTEXT:
            return [subject]
        return [qualified(context, subject) for context in store.contexts()]

    def _version(self, store: SchemaStore, subject: str, version: str, query: Query) -> SchemaVersion:
        number = version_number(version)
        which = Which.ALL if query.flag("deleted") else Which.LIVE
        name = store.alias_of(_valid(subject))
        for candidate in self._beside(store, name):
            found = store.latest(candidate, which) if number == LATEST else store.version(candidate, number, which)
            if found is not None:
                return found
        if not any(store.has_subject(candidate, which) for candidate in self._beside(store, name)):
            raise refusals.subject_not_found(name)
        raise refusals.version_not_found(number)

    def _described(self, store: SchemaStore, version: SchemaVersion, query: Query) -> dict[str, Any]:
        """Returns a schema object. What is empty is left out."""
        schema = version.schema
        made: dict[str, Any] = {
            "subject": version.subject,
            "id": version.schema_id,
            "version": version.version,
            "guid": version.guid,
            "schemaType": schema.schema_type,
            **schema.to_json(),
            "schema": self._text(store, version, query.text("format")),
            "ts": version.timestamp_ms,
            "deleted": version.deleted or None,
        }
        return {key: value for key, value in made.items() if value not in (None, {})}

    def _text(self, store: SchemaStore, version: SchemaVersion, form: str) -> str:
        schema = version.schema
        if form == "resolved" and schema.schema_type == AVRO:
            return self._resolved(store, version)
        if form not in _FORMS or schema.schema_type != PROTOBUF:
            return schema.text
        text = self._old(store, version)
        return str(getattr(parsed(schema.schema_type, text.text, text.references, new=False), _FORMS[form]))

    def _resolved(self, store: SchemaStore, version: SchemaVersion) -> str:
        if not version.schema.references:
            return version.schema.text
        try:
            old = self._old(store, version)
            text = parsed(old.schema_type, old.text, old.references, new=False)
        except SchemaError:
            return version.schema.text
        return AvroText(text.resolved, (), new=False).canonical if isinstance(text, AvroText) else version.schema.text

    # -- registering and comparing

    def register(self, subject: str, query: Query, body: Mapping[str, Any]) -> Answer:
        name = _valid(subject)
        given, schema_id = _schema(body), _number(body, "id")
        check_rules(given.rule_set)
        changes = TagChanges.from_json(body, "schemaTagsToAdd", "schemaTagsToRemove")
        numbered = bool(changes) or body.get("version") not in (None, 0)
        if changes:
            with self._topic.store() as store:
                target = store.alias_of(name)
                schema = with_numbers(store, target, given)
                text = _read(schema.schema_type, schema.text, self._references(store, target, schema.references), True)
            given = replace(given, text=tagged(given.schema_type, text, changes))
        return self._registered(
            name, query, given, number=_number(body, "version"), schema_id=schema_id, numbered=numbered
        )

    def change_tags(self, subject: str, version: str, query: Query, body: Mapping[str, Any]) -> Answer:
        """Registers a version with other tags within its text, other metadata and rules."""
        name, new_version = _valid(subject), _number(body, "newVersion")
        changes = TagChanges.from_json(body, "tagsToAdd", "tagsToRemove")
        sent = _schema({"metadata": body.get("metadata"), "ruleSet": body.get("ruleSet")})
        merged = _schema({"ruleSet": body.get("rulesToMerge")}).rule_set
        removed = body.get("rulesToRemove")
        if not isinstance(removed, list | None) or not all(isinstance(one, str) for one in removed or ()):
            raise RefusedError(422, "rulesToRemove is a list of names")
        if sent.rule_set is not None and (merged is not None or removed is not None):
            raise RefusedError(42210, "ruleSet should be omitted if specifying rulesToMerge or rulesToRemove")
        check_rules(merged)
        check_rules(sent.rule_set)
        with self._topic.store() as store:
            found = self._version(store, name, version, query)
            old = self._old(store, found)
            rule_set = sent.rule_set
            if merged is not None or removed is not None:
                before = store.latest(found.subject) if new_version is None else None
                if new_version is not None:
                    before = store.version(found.subject, new_version - 1)
                rule_set = changed_rules(None if before is None else before.schema.rule_set, merged, removed or [])
        schema = replace(found.schema, rule_set=rule_set)
        if sent.metadata is not None:
            schema = replace(schema, metadata=sent.metadata)
        if changes:
            text = parsed(old.schema_type, old.text, old.references, new=False)
            schema = replace(schema, text=tagged(schema.schema_type, text, changes))
        return self._registered(found.subject, Query(), schema, number=new_version, numbered=True, anew=True)

    def _registered(
        self,
        name: str,
        query: Query,
        given: SchemaText,
        *,
        number: int | None = None,
        schema_id: int | None = None,
        numbered: bool = False,
        anew: bool = False,
    ) -> Answer:
        """`numbered` and `anew` as in `store.registration.register`."""
        if len(given.text.encode(errors="surrogatepass")) > self._options.max_request_body_size:
            raise refusals.too_large()
        read = lru_cache(maxsize=1)(_read)  # a write may decide several times on one text

        def decide(store: SchemaStore) -> tuple[Sequence[Record], _Registration]:
            comparisons: list[Comparison] = []
            target = store.alias_of(name)
            mode, config = store.mode_in_scope(target), self._config(store, target)
            importing = mode in (Mode.IMPORT, Mode.FORWARD)
            new = not importing and config.validate_new_schemas is not False
            latest = store.latest(target)
            before = None if latest is None else latest.schema
            schema = with_numbers(store, target, given if importing else completed(given, before, config))
            text = read(schema.schema_type, schema.text, self._references(store, target, schema.references), new)
            normalize = query.flag("normalize") or bool(config.normalize)
            schema = replace(schema, text=text.normalized if normalize else text.canonical)

            def compare(versions: Sequence[SchemaVersion], in_force: Config) -> None:
                comparisons.append(self._comparison(store, schema, text, versions, in_force))

            plan = register(
                store, target, schema, compare,
                schema_id=schema_id, number=number, defaults=self._defaults, force=query.flag("force"),
                numbered=numbered, anew=anew,
            )  # fmt: skip
            return plan.records, (plan, comparisons)

        def check(decided: _Registration) -> None:
            for comparison in decided[1]:
                if found := comparison():
                    raise refusals.incompatible(name, ", ".join(found))

        known = None if anew else self._known(given, name, read, decide)
        plan, _ = known or self._topic.write(decide, check)
        with self._topic.store() as store:
            target = store.alias_of(name)
            found = store.version(target, plan.version, Which.ALL)
            answer = {} if found is None else self._described(store, found, query)
        answer |= {"id": plan.schema_id, "version": plan.version}
        left_out = {"subject", "ts", "deleted"}
        if given.schema_type == PROTOBUF and not anew:  # Python's client would keep the text for the descriptor it sent
            left_out.add("schema")
        return {key: answer[key] for key in answer if key not in left_out}

    def _known(
        self, given: SchemaText, name: str, read: Callable[..., Text], decide: Decide[_Registration]
    ) -> _Registration | None:
        """Returns the version that has the schema already, as most that are sent are: nothing is written then. None if
        there is none. Its text is read without the store, since that may take long."""
        try:
            with self._topic.store() as store:
                target = store.alias_of(name)
                numbered = with_numbers(store, target, given)
                references = self._references(store, target, numbered.references)
            read(numbered.schema_type, numbered.text, references, True)
            with self._topic.store() as store:
                records, found = decide(store)
            return None if records else found
        except RefusedError:  # it may be behind
            return None

    def compare_with_version(self, subject: str, version: str, query: Query, body: Mapping[str, Any]) -> Answer:
        number = version_number(version)

        def chosen(store: SchemaStore, name: str) -> list[SchemaVersion]:
            found = store.latest(name) if number == LATEST else store.version(name, number)
            if found is None and number != LATEST:
                known = store.has_subject(name)
                raise refusals.version_not_found(number) if known else refusals.subject_not_found(name)
            return [] if found is None else [found]

        return self._compared(subject, query, body, chosen)

    def compare_with_all(self, subject: str, query: Query, body: Mapping[str, Any]) -> Answer:
        return self._compared(subject, query, body, lambda store, name: store.versions(name))

    def _compared(
        self,
        subject: str,
        query: Query,
        body: Mapping[str, Any],
        chosen: Callable[[SchemaStore, str], list[SchemaVersion]],
    ) -> Answer:
        verbose = query.flag("verbose")
        try:
            with self._topic.store() as store:
                name = store.alias_of(_valid(subject))
                config = self._config(store, name)
                versions = chosen(store, name)
                schema = with_numbers(store, name, completed(_schema(body), None, config))
                references = self._references(store, name, schema.references)
            text = _read(schema.schema_type, schema.text, references, new=True)  # without the store: it may take long
            with self._topic.store() as store:
                comparison = self._comparison(store, schema, text, versions, config)
            found = comparison()
        except RefusedError as error:
            if not verbose or error.error_code != 42201:
                raise
            found = [str(error)]
        return {"is_compatible": not found, **({"messages": found} if verbose else {})}

    def level(self, store: SchemaStore, subject: str | None) -> str:
        """Returns the level of compatibility that a new version of a subject must meet."""
        return str(self._config(store, subject).compatibility_level)

    def reads(self, subject: str, old: str, new: str) -> tuple[list[str], list[str]]:
        """Returns why the version `new` cannot read data of `old`, and the other way round."""
        query = Query(b"deleted=true")
        with self._topic.store() as store:
            before, after = (self._old(store, self._version(store, subject, one, query)) for one in (old, new))
        text = parsed(after.schema_type, after.text, after.references, new=False)
        rules = (Requirement(Compatibility.BACKWARD), Requirement(Compatibility.FORWARD))
        backward, forward = (messages(after.schema_type, text, [before], rule)[:-3] for rule in rules)
        return backward, forward

    def _comparison(
        self, store: SchemaStore, schema: SchemaText, text: Text, versions: Sequence[SchemaVersion], config: Config
    ) -> Comparison:
        policy = CompatibilityPolicy(config.compatibility_policy or CompatibilityPolicy.STRICT)
        level = config.compatibility_level or self._defaults.compatibility_level
        assert level is not None
        group = config.compatibility_group
        if group is not None:
            versions = [one for one in versions if _group(one.schema, group) == _group(schema, group)]
        asked = versions if level.transitive else versions[-1:]
        old = [self._old(store, version) for version in asked]
        rule = Requirement(level, policy, bool(config.validate_fields))
        return partial(messages, schema.schema_type, text, old, rule)

    def _old(self, store: SchemaStore, version: SchemaVersion) -> OldVersion:
        schema = version.schema
        try:
            references = self._references(store, version.subject, schema.references)
        except SchemaError:  # one that another program removed: its text cannot be read then
            references = ()
        return OldVersion(version.version, schema.schema_type, schema.text, dict(references))

    def _references(self, store: SchemaStore, subject: str, references: Iterable[Reference]) -> Pairs:
        return tuple((one.name, version.schema.text) for one, version in store.resolve(subject, references))

    def _config(self, store: SchemaStore, subject: str | None) -> Config:
        return store.config_in_scope(subject, self._defaults)

    # -- deleting

    def delete_subject(self, subject: str, query: Query) -> Answer:
        permanent = query.flag("permanent")

        def decide(store: SchemaStore) -> tuple[Sequence[Record], list[int]]:
            name = store.alias_of(_valid(subject))
            refuse_read_only(store, name)
            every, live = store.versions(name, Which.ALL), store.versions(name)
            if not every:
                raise refusals.subject_not_found(name)
            if permanent and live:
                raise refusals.subject_not_soft_deleted(name)
            if not permanent and not live:
                raise refusals.subject_soft_deleted(name)
            chosen = every if permanent else live
            for one in chosen:
                referrers = store.referenced_by(name, one.version, Which.ALL if permanent else Which.LIVE)
                if any(referrer.subject != name for referrer in referrers):
                    raise refusals.referenced(name, one.version)
            deleted = [one.version for one in chosen]
            if not permanent:
                return [SubjectDeletion(name, max(deleted))], deleted
            tombstones = (SchemaTombstone(name, number) for number in reversed(deleted))
            return [*tombstones, *self._forgotten(store, name)], deleted

        return self._topic.write(decide)

    def delete_version(self, subject: str, version: str, query: Query) -> Answer:
        permanent, number = query.flag("permanent"), version_number(version)

        def decide(store: SchemaStore) -> tuple[Sequence[Record], int]:
            name = store.alias_of(_valid(subject))
            refuse_read_only(store, name)
            every = store.versions(name, Which.ALL)
            if not every or (number == LATEST and not permanent and not store.has_subject(name)):
                raise refusals.subject_not_found(name)
            live = store.latest(name) or store.latest(name, Which.ALL)
            found = live if number == LATEST else store.version(name, number, Which.ALL)
            if found is None:
                raise refusals.version_not_found(number)
            if permanent and not found.deleted:
                raise refusals.version_not_soft_deleted(name, found.version)
            if not permanent and found.deleted:
                raise refusals.version_soft_deleted(name, found.version)
            if store.referenced_by(name, found.version, Which.ALL if permanent else Which.LIVE):
                raise refusals.referenced(name, found.version)
            if not permanent:
                return [SchemaRecord(name, found.version, found.schema_id, found.schema, deleted=True)], found.version
            last = self._forgotten(store, name) if len(every) == 1 else ()
            return [SchemaTombstone(name, found.version), *last], found.version

        return self._topic.write(decide)

    def _forgotten(self, store: SchemaStore, subject: str) -> list[Record]:
        """Returns the records that remove a subject's configuration and mode with its last version."""
        made: list[Record] = []
        if store.config(subject) is not None:
            made.append(ConfigRecord(subject, None))
        if store.mode(subject) is not None:
            made.append(ModeRecord(subject, None))
        return made

    # -- configuration

    def config(self, scope: str | None, query: Query) -> Answer:
        with self._topic.store() as store:
            own = store.config(_scope(scope))
            if scope is None or query.flag("defaultToGlobal"):
                in_force = self._config(store, scope)
                return _shown(
                    in_force if own is None else replace(own, compatibility_level=in_force.compatibility_level)
                )
            if own is None:
                raise refusals.no_config(scope)
            return _shown(own)

    def set_config(self, scope: str | None, query: Query, body: Mapping[str, Any]) -> Answer:  # noqa: ARG002
        given = dict(body)
        if "compatibility" in given:
            given["compatibilityLevel"] = given.pop("compatibility")
        level = given.get("compatibilityLevel")
        if isinstance(level, str):
            given["compatibilityLevel"] = level = level.upper()

        def decide(store: SchemaStore) -> tuple[Sequence[Record], Config]:
            key = _scope(scope)
            refuse_read_only(store, scope or "")
            own = store.config(key)
            base = own or (self._defaults if scope is None else Config())
            if level not in (None, *Compatibility):
                raise refusals.invalid_level()
            try:
                config = base.updated(given)
            except ValueError as error:
                raise RefusedError(422, str(error)) from error
            check_rules(config.default_rule_set)
            check_rules(config.override_rule_set)
            return [] if config == own else [ConfigRecord(key, config)], config

        return _shown(self._topic.write(decide), "compatibility")

    def delete_config(self, scope: str | None, query: Query) -> Answer:  # noqa: ARG002
        def decide(store: SchemaStore) -> tuple[Sequence[Record], Config]:
            key = _scope(scope)
            refuse_read_only(store, scope or "")
            own = store.config(key)
            if own is None and scope is not None:
                raise refusals.subject_not_found(scope)
            return [] if own is None else [ConfigRecord(key, None)], own or self._defaults

        return _shown(self._topic.write(decide))

    # -- modes

    def mode(self, scope: str | None, query: Query) -> Answer:
        with self._topic.store() as store:
            own = store.mode(_scope(scope))
            if own is None and scope is not None and not query.flag("defaultToGlobal"):
                raise refusals.no_mode(scope)
            return {"mode": own or store.mode_in_scope(scope)}

    def set_mode(self, scope: str | None, query: Query, body: Mapping[str, Any]) -> Answer:
        if not self._options.mode_mutability:
            raise RefusedError(42205, "Mode changes are not allowed")
        try:
            mode = Mode(str(body.get("mode")).upper())
        except ValueError:
            raise refusals.invalid_mode() from None
        if mode is Mode.FORWARD and scope is not None:
            raise refusals.invalid_mode()

        def decide(store: SchemaStore) -> tuple[Sequence[Record], Mode]:
            key = _scope(scope)
            records: list[Record] = [] if store.mode(key) is mode else [ModeRecord(key, mode)]
            if mode is Mode.IMPORT and store.mode_in_scope(scope) is not Mode.IMPORT and not query.flag("force"):
                within = scope if scope is not None else ""
                every = [one for one in store.subjects(ALL_CONTEXTS, Which.ALL) if in_scope(within or ":.:", one)]
                if any(store.has_subject(one) for one in every):
                    raise refusals.has_subjects()
                removed = [one for name in every for one in store.versions(name, Which.ALL)]
                records += [SchemaTombstone(one.subject, one.version) for one in removed]
                records += [SubjectClearing(name) for name in every]
            return records, mode

        return {"mode": self._topic.write(decide)}

    def delete_mode(self, scope: str | None, query: Query) -> Answer:
        def decide(store: SchemaStore) -> tuple[Sequence[Record], Mode]:
            key = _scope(scope)
            own = store.mode(key)
            if own is None and scope is not None and not query.flag("recursive"):
                raise refusals.subject_not_found(scope)
            records: list[Record] = [] if own is None else [ModeRecord(key, None)]
            if query.flag("recursive") and scope is not None:
                inside = (name for name in store.modes() if name is not None and name != key and in_scope(scope, name))
                records += [ModeRecord(name, None) for name in inside]
            return records, own or store.mode_in_scope(scope)

        return {"mode": self._topic.write(decide)}

    # -- contexts

    def contexts(self, query: Query) -> Answer:
        prefix = query.text("contextPrefix")
        with self._topic.store() as store:
            return query.page([one for one in store.contexts() if one.startswith(prefix)])

    def delete_context(self, context: str, query: Query) -> Answer:  # noqa: ARG002
        name = context.strip(":")

        def decide(store: SchemaStore) -> tuple[Sequence[Record], None]:
            if name not in store.contexts() or name == DEFAULT_CONTEXT:
                raise RefusedError(40401, f"Context '{name}' not found.")
            if store.subjects(qualified(name, ""), Which.ALL):
                raise refusals.context_not_empty(name)
            return [ContextRecord(name, exists=False)], None

        return self._topic.write(decide)


_FORMS: Final = {"serialized": "serialized", "ignore_extensions": "without_extensions"}
"""The values of `format` of Protobuf, and the attribute of its text; any other means the text as it is stored."""


def _read(schema_type: str, text: str, references: Pairs, new: bool) -> Text:
    """As `parsed`; its arguments are hashable."""
    if not text.strip():
        raise refusals.empty_schema()
    return parsed(schema_type, text, dict(references), new=new)


def version_number(text: str) -> int:
    """Returns the number, -1 for the newest."""
    if text in ("latest", "-1"):
        return LATEST
    number = _digits(text)
    if number is not None and number > 0:
        return number
    raise refusals.invalid_version(text)


def _digits(text: str) -> int | None:
    digits = text.lstrip("0") or text[:1]
    number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 11 else 2**31
    return number if number < 2**31 else None


def _id(text: str) -> int:
    number = _digits(text)
    if number is not None:
        return number
    raise RefusedError(404, "HTTP 404 Not Found")


def _valid(subject: str) -> str:
    if not subject or not is_valid(subject):
        raise refusals.invalid_subject(subject)
    return subject


def _scope(scope: str | None) -> str | None:
    if scope is not None and not is_valid(scope, for_config=True):
        raise refusals.invalid_subject(scope)
    return None if scope in (None, ":.:") else scope


def _schema(body: Mapping[str, Any]) -> SchemaText:
    text, kind = body.get("schema"), body.get("schemaType") or AVRO
    if not isinstance(text, str | None) or not isinstance(kind, str):
        raise RefusedError(422, "schema and schemaType are text")
    try:
        return SchemaText.from_json({**body, "schema": text or "", "schemaType": kind.upper()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        missing = isinstance(error, KeyError)
        raise RefusedError(422, f"{error} is missing" if missing else str(error)) from error


def _number(body: Mapping[str, Any], name: str) -> int | None:
    """Returns the number that a request gives; 0 and -1 stand for none."""
    value = body.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value in (0, -1)):
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
        raise RefusedError(422, f"{name} is {value!r:.50}, not a number from 1 to 2^31 - 1")
    return value


def _group(schema: SchemaText, name: str) -> str | None:
    return None if schema.metadata is None else dict(schema.metadata.properties).get(name)


def _shown(config: Config, level: str = "compatibilityLevel") -> dict[str, Any]:
    made = config.to_json()
    if "compatibilityLevel" in made:
        made[level] = made.pop("compatibilityLevel")
    return made
