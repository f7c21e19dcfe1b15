"""The error tree: every error a caller can meet, each with its Kafka error code.

Foreign errors (kio's, kazoo's, OSError where it has a meaning) are translated to these once, at the boundary.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from .escaping import escaped, escaped_lines

__all__ = [
    "BrokerError",
    "ConfigError",
    "CoordinationError",
    "CorruptRecordError",
    "DeliveryError",
    "ErrorCode",
    "KlammError",
    "LogEndMovedError",
    "NoSpaceError",
    "PluginError",
    "ProtocolError",
    "RegistryUnavailableError",
    "SchemaError",
    "StorageError",
    "describe_error",
    "describe_failure",
]


class KlammError(Exception):
    """Root. `code` is the error code on the wire; the message is one line: what is wrong, where, and what would be
    right.

    Names from the wire are escaped when the message is read; a `ConfigError` may have a line for each problem.
    """

    code: ErrorCode = ErrorCode.unknown_server_error

    def __str__(self) -> str:
        return escaped(super().__str__())


class ConfigError(KlammError):
    """The user's configuration is wrong; names the file and the path of the key."""

    code = ErrorCode.invalid_config

    def __str__(self) -> str:
        return escaped_lines(Exception.__str__(self))


class LogEndMovedError(KlammError):
    """The log does not end where a conditional append expects it to; nothing was stored."""

    code = ErrorCode.operation_not_attempted


class PluginError(KlammError):
    """A plugin is unknown, cannot be loaded or broke its contract."""


class ProtocolError(KlammError):
    """A frame that cannot be read: closes one connection, never the broker."""

    code = ErrorCode.invalid_request


class CorruptRecordError(KlammError):
    """A record batch is damaged: wrong CRC, count, length or varint. The message names partition and offset if they
    are known."""

    code = ErrorCode.corrupt_message


class StorageError(KlammError):
    """The log directory cannot be read or written, or belongs to another broker."""

    code = ErrorCode.kafka_storage_error


class NoSpaceError(StorageError):
    """A write failed because the disk is full, or the quota is used up."""


class CoordinationError(KlammError):
    """The coordination refused a request or is unavailable; see `klamm.core.interfaces.coordination` for the precise
    kinds."""

    code = ErrorCode.coordinator_not_available


class SchemaError(KlammError):
    """A schema is unknown, incompatible, ambiguous, or does not fit the payload."""

    code = ErrorCode.invalid_record


class RegistryUnavailableError(KlammError):
    """The schema registry did not answer, or refused the user; the schema may well be there. The message names the
    registry's URL."""

    code = ErrorCode.coordinator_not_available


class DeliveryError(KlammError):
    """A record could not be delivered; raised on its future."""


class BrokerError(KlammError):
    """An error code that a broker answered. `code` is set on the instance; `words` is the message without the code's
    name."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        message = message.removeprefix(f"{code.name.upper()}: ")  # a broker's message may begin with the name
        super().__init__(f"{code.name.upper()}: {message}" if message else code.name.upper())
        self.code = code
        self.words = message


def describe_error(error: BaseException) -> str:
    """Returns one line about an unexpected error, for a log: its kind, its message and where it was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""
    return f"{describe_failure(error)}{place}"


def describe_failure(error: BaseException) -> str:
    """Returns one line about an expected failure, as of a connection, for a log: its kind and its message, if any."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
