"""Decides whether a new schema may follow the versions before it, and makes the text of the answer if it may not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from klamm.core.errors import SchemaError

from .compatibility import Compatibility
from .differences import CompatibilityPolicy
from .formats import Text, differences, parsed

MAX_SHOWN: Final = 10 * 1024
"""Characters of an old schema in an answer; a longer one is cut there."""


@dataclass(frozen=True)
class OldVersion:
    """A version to compare with: `references` are texts by name."""

    version: int
    schema_type: str
    text: str
    references: dict[str, str]


@dataclass(frozen=True)
class Requirement:
    level: Compatibility
    policy: CompatibilityPolicy = CompatibilityPolicy.STRICT
    validate_fields: bool = False


def messages(schema_type: str, new: Text, versions: Sequence[OldVersion], rule: Requirement) -> list[str]:
    """Returns why the new schema may not follow `versions`, the oldest first, in Confluent's words; nothing if it may.
    The newest is compared first, and the first that is incompatible ends it."""
    if rule.level is Compatibility.NONE:
        return []
    asked = list(reversed(versions)) if rule.level.transitive else list(versions[-1:])
    for old in asked:
        found = _between(schema_type, new, old, rule)
        if found:
            level = f"{{validateFields: '{str(rule.validate_fields).lower()}', compatibility: '{rule.level}'}}"
            return [*found, f"{{oldSchemaVersion: {old.version}}}", _shown(old.text), level]
    return []


def _shown(text: str) -> str:
    if len(text) <= MAX_SHOWN:
        return f"{{oldSchema: '{text}'}}"
    return f"{{oldSchema: <truncated> '{text[:MAX_SHOWN]}...'}}"


def _between(schema_type: str, new: Text, old: OldVersion, rule: Requirement) -> list[str]:
    if old.schema_type != schema_type:
        return ["Incompatible because of different schema type"]
    found = []
    try:
        before = parsed(schema_type, old.text, old.references, new=False)
        if rule.level.read_by_old:
            changes = differences(schema_type, new, before, rule.policy)
            found += [change.message("old", "new") for change in changes if not change.compatible]
        if rule.level.reads_old:
            changes = differences(schema_type, before, new, rule.policy)
            found += [change.message("new", "old") for change in changes if not change.compatible]
    except SchemaError as error:  # the old one is damaged, or the two are too complex
        return [f"Unexpected exception during compatibility check: {error}"]
    return found
