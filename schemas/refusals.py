"""The errors of the registry, in the words of Confluent's Schema Registry: clients and test suites compare them."""

from __future__ import annotations

from .store.registration import RefusedError
from .store.subjects import context_of


def subject_not_found(subject: str) -> RefusedError:
    return RefusedError(40401, f"Subject '{subject}' not found.")


def version_not_found(version: int | str) -> RefusedError:
    return RefusedError(40402, f"Version {version} not found.")


def schema_not_found(schema_id: int | None = None) -> RefusedError:
    return RefusedError(40403, "Schema not found" if schema_id is None else f"Schema {schema_id} not found")


def guid_not_found() -> RefusedError:
    return RefusedError(40403, "Schema GUID not found")


def subject_soft_deleted(subject: str) -> RefusedError:
    return RefusedError(
        40404, f"Subject '{subject}' was soft deleted.Set permanent=true to delete permanently"
    )  # there is no blank in Confluent's


def subject_not_soft_deleted(subject: str) -> RefusedError:
    return RefusedError(40405, f"Subject '{subject}' was not deleted first before being permanently deleted")


def version_soft_deleted(subject: str, version: int) -> RefusedError:
    return RefusedError(
        40406, f"Subject '{subject}' Version {version} was soft deleted.Set permanent=true to delete permanently"
    )


def version_not_soft_deleted(subject: str, version: int) -> RefusedError:
    return RefusedError(
        40407, f"Subject '{subject}' Version {version} was not deleted first before being permanently deleted"
    )


def no_config(subject: str) -> RefusedError:
    return RefusedError(40408, f"Subject '{subject}' does not have subject-level compatibility configured")


def no_mode(subject: str) -> RefusedError:
    return RefusedError(40409, f"Subject '{subject}' does not have subject-level mode configured")


def incompatible(subject: str, messages: list[str]) -> RefusedError:
    return RefusedError(
        40901,
        f'Schema being registered is incompatible with an earlier schema for subject "{subject}", details: '
        f"[{', '.join(messages)}]",
    )


def invalid_schema(reason: str) -> RefusedError:
    return RefusedError(42201, f"Invalid schema, details: {reason}")


def empty_schema() -> RefusedError:
    return RefusedError(42201, "Empty schema")


def invalid_version(version: str) -> RefusedError:
    return RefusedError(
        42202,
        f"The specified version '{version}' is not a valid version id. Allowed values are between [1, 2^31-1] and the "
        'string "latest"',
    )


def invalid_level() -> RefusedError:
    return RefusedError(
        42203,
        "Invalid compatibility level. Valid values are none, backward, forward, full, backward_transitive, "
        "forward_transitive, and full_transitive",
    )


def invalid_mode() -> RefusedError:
    return RefusedError(42204, "Invalid mode. Valid values are READWRITE, READONLY, IMPORT and FORWARD.")


def read_only(subject: str) -> RefusedError:
    return RefusedError(42205, f"Subject {subject} in context {context_of(subject)} is in read-only mode")


def has_subjects() -> RefusedError:
    return RefusedError(42205, "Cannot import since found existing subjects")


def referenced(subject: str, version: int) -> RefusedError:
    return RefusedError(
        42206,
        f"One or more references exist to the schema {{magic=1,keytype=SCHEMA,subject={subject},version={version}}}.",
    )


def invalid_subject(subject: str) -> RefusedError:
    return RefusedError(42208, f"The specified subject '{subject}' is not a valid.")


def too_large() -> RefusedError:
    return RefusedError(42209, "Register operation failed because schema is too large")


def invalid_rules(reason: str) -> RefusedError:
    return RefusedError(42210, f"Invalid rule set: {reason}")


def context_not_empty(context: str) -> RefusedError:
    return RefusedError(42211, f"The specified context '{context}' is not empty.")


def store_failed(reason: str) -> RefusedError:
    return RefusedError(50001, f"Error while writing to the topic of schemas: {reason}")


def timed_out(reason: str) -> RefusedError:
    """The outcome is unknown: the client asks again."""
    return RefusedError(50002, f"Write to the topic of schemas timed out: {reason}")
