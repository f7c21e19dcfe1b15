"""The errors of the registry, in the words of Confluent's Schema Registry: clients and test suites compare them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from klamm.core.errors import SchemaError


class RefusedError(SchemaError):
    """A request that a registry refuses; `error_code` is Confluent's."""

    def __init__(self, error_code: int, reason: str) -> None:
        super().__init__(reason)
        self.error_code = error_code


def _refusal(error_code: int, template: str) -> Callable[..., RefusedError]:
    """Returns a function that makes the error; its arguments are put into the template, as `str.format` does."""
    return lambda *given: RefusedError(error_code, template.format(*given))


subject_not_found: Final = _refusal(40401, "Subject '{}' not found.")
version_not_found: Final = _refusal(40402, "Version {} not found.")
schema_not_found: Final = _refusal(40403, "Schema not found")
schema_id_not_found: Final = _refusal(40403, "Schema {} not found")
guid_not_found: Final = _refusal(40403, "Schema GUID not found")
# There is no blank after `deleted.` in Confluent's texts.
subject_soft_deleted: Final = _refusal(40404, "Subject '{}' was soft deleted.Set permanent=true to delete permanently")
subject_not_soft_deleted: Final = _refusal(40405, "Subject '{}' was not deleted first before being permanently deleted")
version_soft_deleted: Final = _refusal(
    40406, "Subject '{}' Version {} was soft deleted.Set permanent=true to delete permanently"
)
version_not_soft_deleted: Final = _refusal(
    40407, "Subject '{}' Version {} was not deleted first before being permanently deleted"
)
no_config: Final = _refusal(40408, "Subject '{}' does not have subject-level compatibility configured")
no_mode: Final = _refusal(40409, "Subject '{}' does not have subject-level mode configured")
incompatible: Final = _refusal(
    40901,
    'Schema being registered is incompatible with an earlier schema for subject "{}", details: [{}]',
)
invalid_schema: Final = _refusal(42201, "Invalid schema, details: {}")
empty_schema: Final = _refusal(42201, "Empty schema")
invalid_version: Final = _refusal(
    42202,
    "The specified version '{}' is not a valid version id. Allowed values are between [1, 2^31-1] and the string "
    '"latest"',
)
invalid_level: Final = _refusal(
    42203,
    "Invalid compatibility level. Valid values are none, backward, forward, full, backward_transitive, "
    "forward_transitive, and full_transitive",
)
invalid_mode: Final = _refusal(42204, "Invalid mode. Valid values are READWRITE, READONLY, IMPORT and FORWARD.")
wrong_mode: Final = _refusal(42205, "Subject {} in context {} is {}")
has_subjects: Final = _refusal(42205, "Cannot import since found existing subjects")
referenced: Final = _refusal(
    42206, "One or more references exist to the schema {{magic=1,keytype=SCHEMA,subject={},version={}}}."
)
invalid_subject: Final = _refusal(42208, "The specified subject '{}' is not a valid.")
too_large: Final = _refusal(42209, "Register operation failed because schema is too large")
invalid_rules: Final = _refusal(42210, "Invalid rule set: {}")
context_not_empty: Final = _refusal(42211, "The specified context '{}' is not empty.")
store_failed: Final = _refusal(50001, "Error while writing to the topic of schemas: {}")
timed_out: Final = _refusal(50002, "Write to the topic of schemas timed out: {}")
"""The outcome is unknown: the client asks again."""
