"""The configuration and the mode of a subject, of a context, or of all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Final

from ..compatibility import Compatibility
from ..differences import CompatibilityPolicy
from .schema import Metadata, RuleSet


class Mode(StrEnum):
    """What may be written. `READONLY_OVERRIDE` is `READONLY`; `FORWARD` is for the global context."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    READONLY_OVERRIDE = "READONLY_OVERRIDE"
    IMPORT = "IMPORT"
    FORWARD = "FORWARD"

    @property
    def read_only(self) -> bool:
        return self.startswith("READONLY")


@dataclass(frozen=True, slots=True)
class Config:
    """The settings; None where one is not set. `alias` names the subject that stands for this one.
    `compatibility_group` is a property of the metadata: only versions with the same value are compared. New schemas get
    the `default_…`, then their own metadata and rules, then the `override_…`.
    """

    alias: str | None = None
    alias_for_deks: str | None = None
    normalize: bool | None = None
    validate_fields: bool | None = None
    validate_new_schemas: bool | None = None
    validate_rules: bool | None = None
    compatibility_level: Compatibility | None = None
    compatibility_policy: CompatibilityPolicy | None = None
    compatibility_group: str | None = None
    default_metadata: Metadata | None = None
    override_metadata: Metadata | None = None
    default_rule_set: RuleSet | None = None
    override_rule_set: RuleSet | None = None

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Config:
        """Raises `ValueError` for an invalid value."""
        return cls().updated(given)

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, key in _KEYS.items():
            value = getattr(self, name)
            if value is not None:
                found[key] = value.to_json() if isinstance(value, Metadata | RuleSet) else value
        return found

    def updated(self, given: Mapping[str, Any]) -> Config:
        """Returns the configuration with the keys of `given` set, and those that are null removed."""
        return replace(self, **{name: _read(name, key, given[key]) for name, key in _KEYS.items() if key in given})

    def over(self, other: Config) -> Config:
        """Returns a subject's configuration, completed by the global one except for level, alias, metadata and
        rules."""
        inherited = {name: getattr(other, name) for name in _INHERITED if getattr(self, name) is None}
        return replace(self, **inherited)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


_KEYS: Final = {field.name: _camel(field.name) for field in fields(Config)}
_INHERITED: Final = (
    "normalize", "validate_fields", "validate_new_schemas", "validate_rules", "compatibility_policy",
    "compatibility_group",
)  # fmt: skip


def _read(name: str, key: str, value: Any) -> Any:
    if value is None:
        return None
    if name == "compatibility_level":
        return Compatibility(value)
    if name == "compatibility_policy":
        return CompatibilityPolicy(value)
    if name.endswith("metadata"):
        return Metadata.from_json(_object(key, value))
    if name.endswith("rule_set"):
        return RuleSet.from_json(_object(key, value))
    wanted = bool if name.startswith(("normalize", "validate")) else str
    if not isinstance(value, wanted):
        raise ValueError(f"{key} is {value!r:.100}, not {'true or false' if wanted is bool else 'text'}")
    return value


def _object(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{key} is {value!r:.100}, not an object")
    return value
