"""Completes the metadata and rules of a new schema by the configuration and the version before, and checks them.

The registry stores rules and runs none: clients do.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final

from .. import refusals
from ..store.config import Config
from ..store.schema import Metadata, Rule, RuleSet, SchemaText

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_MIGRATION: Final = frozenset({"UPGRADE", "DOWNGRADE", "UPDOWN"})
_DOMAIN: Final = frozenset({"WRITE", "READ", "WRITEREAD"})
_BOTH: Final = frozenset({"WRITEREAD", "UPDOWN"})


def completed(schema: SchemaText, before: SchemaText | None, config: Config) -> SchemaText:
    """Returns the schema with the configuration's defaults, then its own metadata and rules (or those of the version
    before), then the configuration's overrides."""
    metadata, rule_set = schema.metadata, schema.rule_set
    if before is not None and not schema.text.strip():  # only metadata or rules are to be changed
        schema = replace(schema, text=before.text, schema_type=before.schema_type, references=before.references)
    if before is not None:
        metadata = before.metadata if metadata is None else metadata
        rule_set = before.rule_set if rule_set is None else rule_set
    return replace(
        schema,
        metadata=_metadata(_metadata(config.default_metadata, metadata), config.override_metadata),
        rule_set=_rule_set(_rule_set(config.default_rule_set, rule_set), config.override_rule_set),
    )


def _metadata(under: Metadata | None, over: Metadata | None) -> Metadata | None:
    if under is None or over is None:
        return over if under is None else under
    return Metadata.from_json(
        {
            "tags": {path: list(names) for path, names in (*under.tags, *over.tags)},
            "properties": dict(under.properties) | dict(over.properties),
            "sensitive": [*under.sensitive, *over.sensitive],
        }
    )


def _rule_set(under: RuleSet | None, over: RuleSet | None) -> RuleSet | None:
    if under is None or over is None:
        return over if under is None else under
    return RuleSet(
        _by_name(under.migration_rules, over.migration_rules),
        _by_name(under.domain_rules, over.domain_rules),
        _by_name(under.encoding_rules, over.encoding_rules),
        over.enable_at or under.enable_at,
    )


def _by_name(under: Iterable[Rule], over: Iterable[Rule]) -> tuple[Rule, ...]:
    added = list(over)
    names = {rule.name for rule in added}
    return (*(rule for rule in under if rule.name not in names), *added)


def changed_rules(before: RuleSet | None, merged: RuleSet | None, removed: Collection[str]) -> RuleSet | None:
    """Returns the rules of the version before, with those of `merged` added or replaced by name, and those named in
    `removed` dropped."""
    found = _rule_set(before, merged)
    if found is None:
        return None

    def kept(rules: Iterable[Rule]) -> tuple[Rule, ...]:
        return tuple(rule for rule in rules if rule.name not in removed)

    return RuleSet(kept(found.migration_rules), kept(found.domain_rules), kept(found.encoding_rules), found.enable_at)


def check_rules(rule_set: RuleSet | None) -> None:
    """Raises `RefusedError` 42210 for the first fault."""
    if rule_set is None:
        return
    names: set[str] = set()
    groups = (
        (rule_set.migration_rules, _MIGRATION),
        (rule_set.domain_rules, _DOMAIN),
        (rule_set.encoding_rules, _DOMAIN),
    )
    for rules, modes in groups:
        for rule in rules:
            name = rule.name or ""
            if not _NAME.fullmatch(name):
                raise refusals.invalid_rules(f"rule name '{name}' is not a letter or _, then letters, digits, _ and -")
            if name in names:
                raise refusals.invalid_rules(f"rule name '{name}' occurs twice")
            names.add(name)
            if not rule.type:
                raise refusals.invalid_rules(f"rule '{name}' has no type")
            if rule.mode not in modes:
                raise refusals.invalid_rules(f"rule '{name}' has mode {rule.mode}, not {', '.join(sorted(modes))}")
            actions = (rule.on_success or "", rule.on_failure or "")
            if any("," in action for action in actions) and rule.mode not in _BOTH:
                raise refusals.invalid_rules(f"rule '{name}' has two actions, and mode {rule.mode} has one")
