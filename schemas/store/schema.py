"""A schema: its text and type, the schemas that it refers to, its metadata and rules, and its identity.

Two schemas are the same, and have one id in a context, if all of these are equal; `doc`, `default`, `aliases` and
properties are part of the text. `SchemaText.guid` is Confluent's, an MD5 over all of them, equal in all contexts. Sets
and maps are sorted, as in Java, by UTF-16.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final
from uuid import UUID

from ..java_json import java_order
from ..names import AVRO

Pairs = tuple[tuple[str, str], ...]
VERSION: Final = "confluent:version"
"""The property that has the number of a schema's version, if a client sent one with it."""


_NUMBER: Final = re.compile(r"[0-9]{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Reference:
    """A version of a subject whose types the text names. `name` is the full name of an Avro type, the URI of a JSON
    schema's `$ref`, or the path of a Protobuf import."""

    name: str
    subject: str
    version: int

    @classmethod
    def from_json(cls, given: Any) -> Reference:
        _check_object("a reference", given)
        return cls(_text(given, "name"), _text(given, "subject"), _int(given, "version"))

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "subject": self.subject, "version": self.version}


@dataclass(frozen=True, slots=True)
class Metadata:
    """`tags`: path of a field → its tags; `sensitive`: the names of properties that are not shown."""

    tags: tuple[tuple[str, tuple[str, ...]], ...] = ()
    properties: Pairs = ()
    sensitive: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, given: Any) -> Metadata:
        _check_object("metadata", given)
        tags = _map(given, "tags")
        return cls(
            tuple((path, _sorted_set(tags[path], f"tags.{path}")) for path in sorted(tags, key=java_order)),
            _pairs(given, "properties"),
            _sorted_set(given.get("sensitive"), "sensitive"),
        )

    def to_json(self) -> dict[str, Any]:
        return _not_empty(
            tags={path: list(tags) for path, tags in self.tags},
            properties=dict(self.properties),
            sensitive=list(self.sensitive),
        )

    def hashed(self) -> Iterable[str]:
        for path, tags in self.tags:
            yield path
            yield from tags
        yield from chain.from_iterable(self.properties)
        yield from self.sensitive


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that clients run. `kind` is TRANSFORM or CONDITION, `mode` UPGRADE, WRITEREAD, …."""

    name: str | None = None
    doc: str | None = None
    kind: str | None = None
    mode: str | None = None
    type: str | None = None
    tags: tuple[str, ...] = ()
    params: Pairs = ()
    expr: str | None = None
    on_success: str | None = None
    on_failure: str | None = None
    disabled: bool = False

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Rule:
        texts = {name: _optional_text(given, name) for name in ("name", "doc", "kind", "mode", "type", "expr")}
        return cls(
            **texts,
            tags=_sorted_set(given.get("tags"), "tags"),
            params=_pairs(given, "params"),
            on_success=_optional_text(given, "onSuccess"),
            on_failure=_optional_text(given, "onFailure"),
            disabled=given.get("disabled") is True,
        )

    def to_json(self) -> dict[str, Any]:
        made = _not_empty(
            name=self.name, doc=self.doc, kind=self.kind, mode=self.mode, type=self.type, tags=list(self.tags),
            params=dict(self.params), expr=self.expr, onSuccess=self.on_success, onFailure=self.on_failure,
        )  # fmt: skip
        return {**made, "disabled": self.disabled}

    def hashed(self) -> Iterable[str]:
        yield from (text or "" for text in (self.name, self.doc, self.kind, self.mode, self.type))
        yield from self.tags
        yield from chain.from_iterable(self.params)
        yield from (text or "" for text in (self.expr, self.on_success, self.on_failure))
        if self.disabled:
            yield "\x01"


@dataclass(frozen=True, slots=True)
class RuleSet:
    migration_rules: tuple[Rule, ...] = ()
    domain_rules: tuple[Rule, ...] = ()
    encoding_rules: tuple[Rule, ...] = ()
    enable_at: str | None = None

    @classmethod
    def from_json(cls, given: Any) -> RuleSet:
        _check_object("ruleSet", given)
        return cls(
            _rules(given, "migrationRules"),
            _rules(given, "domainRules"),
            _rules(given, "encodingRules"),
            _optional_text(given, "enableAt"),
        )

    def to_json(self) -> dict[str, Any]:
        return _not_empty(
            migrationRules=[rule.to_json() for rule in self.migration_rules],
            domainRules=[rule.to_json() for rule in self.domain_rules],
            encodingRules=[rule.to_json() for rule in self.encoding_rules],
            enableAt=self.enable_at,
        )

    def hashed(self) -> Iterable[str]:
        for rule in (*self.migration_rules, *self.domain_rules, *self.encoding_rules):
            yield from rule.hashed()
        yield self.enable_at or ""


@dataclass(frozen=True, slots=True)
class SchemaText:
    """A schema without a subject. `text`: as stored; a new schema's is canonical."""

    text: str
    schema_type: str = AVRO
    references: tuple[Reference, ...] = ()
    metadata: Metadata | None = None
    rule_set: RuleSet | None = None

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> SchemaText:
        """Reads a schema object of a record, a request or an answer. Raises `ValueError` for a value that is none of
        its kind, `KeyError` for what is missing."""
        references = given.get("references") or []
        if not isinstance(references, list):
            raise ValueError("references is not a list")
        metadata, rule_set = given.get("metadata"), given.get("ruleSet")
        return cls(
            _text(given, "schema"),
            _optional_text(given, "schemaType") or AVRO,
            tuple(map(Reference.from_json, references)),
            None if metadata is None else Metadata.from_json(metadata),
            None if rule_set is None else RuleSet.from_json(rule_set),
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the part of a schema object that `from_json` reads; `schemaType` is left out if it is AVRO."""
        found = {
            "schemaType": None if self.schema_type == AVRO else self.schema_type,
            "references": [reference.to_json() for reference in self.references] or None,
            "metadata": None if self.metadata is None else self.metadata.to_json(),
            "ruleSet": None if self.rule_set is None else self.rule_set.to_json(),
            "schema": self.text,
        }
        return {name: value for name, value in found.items() if value is not None}

    def named_version(self) -> int | None:
        """Returns the number of the version that the metadata name."""
        named = None if self.metadata is None else dict(self.metadata.properties).get(VERSION)
        return int(named) if named is not None and _NUMBER.fullmatch(named) else None

    def with_version(self, number: int | None) -> SchemaText:
        """Returns the schema with this number in its metadata, or, if None, with metadata that name no version."""
        metadata = self.metadata or Metadata()
        properties = {name: value for name, value in metadata.properties if name != VERSION}
        if number is not None:
            properties[VERSION] = str(number)
        pairs = tuple((name, properties[name]) for name in sorted(properties, key=java_order))
        return replace(self, metadata=replace(metadata, properties=pairs))

    def is_version(self, other: SchemaText, number: int) -> bool:
        """Returns True if this equals `other`, which is version `number`, except that only one of the two names a
        version."""
        own, its = self.named_version(), other.named_version()
        if (own is None) == (its is None) or (its is None and own != number):
            return False
        return self.with_version(None).guid() == other.with_version(None).guid()

    def guid(self) -> str:
        """Returns the UUID that is the MD5 of text, references, metadata and rules."""
        made = hashlib.md5(_utf8(self.text), usedforsecurity=False)
        for reference in self.references:
            made.update(_utf8(reference.name) + _utf8(reference.subject) + reference.version.to_bytes(4, signed=True))
        for part in (self.metadata, self.rule_set):
            if part is not None:
                made.update(b"\x01" + b"".join(map(_utf8, part.hashed())))
        return str(UUID(bytes=made.digest()))


def text_md5(text: str) -> bytes:
    """Returns the 16 bytes of a text as it is stored; others may have stored one that is no UTF-8."""
    return hashlib.md5(text.encode(errors="surrogatepass"), usedforsecurity=False).digest()


def _utf8(text: str) -> bytes:
    return text.encode(errors="replace")  # a surrogate alone is `?` in Java too


def _not_empty(**given: Any) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value not in (None, "", [], {})}


def _check_object(what: str, given: Any) -> None:
    if not isinstance(given, Mapping):
        raise ValueError(f"{what} is {given!r:.100}, not an object")


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given[name]
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r:.100}, not text")
    return value


def _optional_text(given: Mapping[str, Any], name: str) -> str | None:
    return None if given.get(name) is None else _text(given, name)


def _int(given: Mapping[str, Any], name: str) -> int:
    value = given[name]
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**31) <= value < 2**31:
        raise ValueError(f"{name} is {value!r:.100}, not a number of 32 bits")
    return value


def _map(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = given.get(name)
    if not isinstance(value, dict | None):
        raise ValueError(f"{name} is {value!r:.100}, not an object")
    return value or {}


def _pairs(given: Mapping[str, Any], name: str) -> Pairs:
    found = _map(given, name)
    return tuple((key, _text(found, key)) for key in sorted(found, key=java_order))


def _sorted_set(given: Any, name: str) -> tuple[str, ...]:
    if given is None:
        return ()
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise ValueError(f"{name} is {given!r:.100}, not a list of text")
    return tuple(sorted(set(given), key=java_order))


def _rules(given: Mapping[str, Any], name: str) -> tuple[Rule, ...]:
    found = given.get(name) or []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ValueError(f"{name} is {found!r:.100}, not a list of rules")
    return tuple(map(Rule.from_json, found))
