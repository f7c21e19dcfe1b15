"""The records by which a new version is registered, from what the store has (Confluent's rules; no I/O)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from klamm.core.errors import SchemaError

from .. import refusals
from ..compatibility import Compatibility
from ..refusals import RefusedError
from .config import Config, Mode
from .records import ConfigRecord, ContextRecord, Record, SchemaRecord, SchemaTombstone
from .schema import SchemaText
from .schema_store import SchemaStore, SchemaVersion, Which
from .subjects import context_of, is_valid

DEFAULTS: Final = Config(compatibility_level=Compatibility.BACKWARD)
"""What holds where no record sets anything."""
_MAX_ID: Final = 2**31 - 1

Check = Callable[[Sequence[SchemaVersion], Config], None]
"""Raises an error if the schema is not compatible with a subject's live versions, the oldest first, by its
configuration."""


@dataclass(frozen=True, slots=True)
class NewVersion:
    """`records` are to be appended together; there are none if the version exists."""

    version: int
    schema_id: int
    schema: SchemaText
    records: tuple[Record, ...] = ()


def register(
    store: SchemaStore,
    subject: str,
    schema: SchemaText,
    check: Check,
    *,
    schema_id: int | None = None,
    number: int | None = None,
    config: Config | None = None,
    defaults: Config = DEFAULTS,
    force: bool = False,
    numbered: bool = False,
    anew: bool = False,
) -> NewVersion:
    """Returns how a schema, in its canonical form, becomes a version of a subject.

    `schema_id` and `number` are those that the request names. `config` becomes the subject's with its first version, if
    it has none. `force`: `check` is not called. `numbered`: the request names a version, which is set in the metadata;
    without `number` it names the newest, and only the newest version counts as equal. `anew`: makes a version even if
    there is an equal one. Raises `RefusedError`, or what `check` raises.
    """
    if not is_valid(subject):
        raise refusals.invalid_subject(subject)
    mode = store.mode_in_scope(subject)
    refuse_read_only(store, subject)
    if schema_id is not None and mode not in (Mode.IMPORT, Mode.FORWARD):
        raise refusals.wrong_mode(subject, context_of(subject), "not in import mode")
    if schema_id is None and mode is not Mode.READWRITE:
        raise refusals.wrong_mode(subject, context_of(subject), "not in read-write mode")
    schema = with_numbers(store, subject, schema)
    equal = None if anew else store.find(subject, schema)
    if equal is not None and numbered and number is None and equal != store.latest(subject):
        equal = None
    if equal is not None and schema_id in (None, equal.schema_id) and number in (None, equal.version):
        return NewVersion(equal.version, equal.schema_id, equal.schema)
    first = store.next_version(subject) == 1
    new_config = config if config is not None and first and store.config(subject) is None else None
    importing = mode in (Mode.IMPORT, Mode.FORWARD)
    if not importing and not force:
        in_force = store.config_in_scope(subject, defaults) if new_config is None else new_config.over(defaults)
        check(store.versions(subject), in_force)
    version = _version(store, subject, number, schema_id, importing)
    if not importing and (numbered or schema.named_version() is not None):
        schema = schema.with_version(version)
    new_id = _id(store, subject, schema, schema_id)
    context = context_of(subject)
    records: list[Record] = []
    if context not in store.contexts():
        records.append(ContextRecord(context))
    if new_config is not None:
        records.append(ConfigRecord(subject, new_config))
    records.append(SchemaRecord(subject, version, new_id, schema))
    records += (
        SchemaTombstone(subject, old.version)
        for old in store.versions(subject, Which.DELETED)
        if old.schema_id == new_id
        and old.version != version
        and not store.referenced_by(subject, old.version, Which.ALL)
    )
    return NewVersion(version, new_id, schema, tuple(records))


def with_numbers(store: SchemaStore, subject: str, schema: SchemaText) -> SchemaText:
    """Returns the schema with the number of the newest version in the place of -1 in its references. Raises
    `RefusedError` for a reference that is not live."""
    if not schema.references:
        return schema
    try:
        found = store.resolve(subject, schema.references, Which.LIVE)
    except SchemaError as error:
        raise RefusedError(42201, f"Invalid schema: {error}") from error
    numbers = {reference: version.version for reference, version in found}
    references = tuple(
        replace(one, version=numbers[one]) if one.version == -1 and one in numbers else one for one in schema.references
    )
    return replace(schema, references=references)


def refuse_read_only(store: SchemaStore, subject: str) -> None:
    if store.mode_in_scope(subject).read_only:
        raise refusals.wrong_mode(subject, context_of(subject), "in read-only mode")


def _version(store: SchemaStore, subject: str, number: int | None, schema_id: int | None, importing: bool) -> int:
    following = store.next_version(subject)
    if number is None or number == following:
        return following
    held = store.version(subject, number, Which.ALL)
    if importing and held is not None and held.schema_id != schema_id:
        raise RefusedError(42205, f"Overwrite version {number}, which has id {held.schema_id}, is not permitted.")
    if not importing:
        raise RefusedError(42201, "Version is not one more than previous version")
    return number


def _id(store: SchemaStore, subject: str, schema: SchemaText, schema_id: int | None) -> int:
    context = context_of(subject)
    if schema_id is None:
        known = store.id_of(schema, context)
        new = store.last_id(context) + 1 if known is None else known
        if new > _MAX_ID:
            raise RefusedError(50001, f"context {context} has no id left")
        return new
    holder = store.schema(schema_id, context)
    if holder is not None and holder.guid != schema.guid():
        raise RefusedError(42205, f"Overwrite new schema with id {schema_id} in context {context} is not permitted.")
    return schema_id
