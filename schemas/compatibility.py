"""Checks whether data written with one schema can be read with another, by the rule that readers follow
(`resolution`).

A topic's rule limits how its schema may change: BACKWARD: the new version reads data of the last one; FORWARD: the last
version reads data of the new one; FULL: both; …_TRANSITIVE: the same against all versions; NONE: no check.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from klamm.core.errors import SchemaError


class Compatibility(StrEnum):
    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def reads_old(self) -> bool:
        return self.startswith(("BACKWARD", "FULL"))

    @property
    def read_by_old(self) -> bool:
        return self.startswith(("FORWARD", "FULL"))

    @property
    def transitive(self) -> bool:
        return self.endswith("TRANSITIVE")


def check(subject: str, new: str, versions: Sequence[tuple[int, str | SchemaError]], rule: Compatibility) -> None:
    """Checks a new schema against `versions`, the oldest first: each is a number, and the text or the reason why it
    cannot be read. Raises `SchemaError`, which names the version, the field and the rule.
    """
    from .avro.parsing import parse  # imports fastavro, which a caller that only needs the rules' names does not load
    from .avro.resolution import refusals, resolve

    if rule is Compatibility.NONE:
        return
    mine = parse(new).root
    asked = versions if rule.transitive else versions[-1:]
    for number, old in asked:
        try:
            if isinstance(old, SchemaError):
                raise old
            theirs = parse(old).root
        except SchemaError as error:  # another program wrote it to the topic
            raise _refusal(subject, rule, f"version {number} cannot be checked", str(error)) from error
        if rule.reads_old:
            for problem in refusals(resolve(theirs, mine)):
                raise _refusal(subject, rule, f"the new schema cannot read data of version {number}", problem)
        if rule.read_by_old:
            for problem in refusals(resolve(mine, theirs)):
                raise _refusal(subject, rule, f"version {number} cannot read data of the new schema", problem)


def _refusal(subject: str, rule: Compatibility, what: str, problem: str) -> SchemaError:
    return SchemaError(f"{subject}: not {rule} compatible: {what}: {problem}")
