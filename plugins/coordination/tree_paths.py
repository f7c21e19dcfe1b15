"""Checks of paths and sizes for all coordinations, made before a request is sent."""

from __future__ import annotations

from collections.abc import Sequence

from klamm.plugin import Check, CoordinationError, Create, Delete, ErrorCode, Operation, Set

MAX_DATA_BYTES = 1_000_000
"""Maximum size of one node's data, and of all operations in one transaction: ZooKeeper closes the connection at a
request of more than 1,048,575 bytes."""
MOST_OPERATIONS = 4_000
"""Maximum number of operations in one transaction, unless the server sets its own limit."""
_OPERATION_BYTES = 48
"""The size of a Create in a ZooKeeper request, the largest operation, without path and data."""


class TooLargeError(CoordinationError):
    """The data, or the number of operations, is over the limit: a retry does not help."""

    code = ErrorCode.message_too_large


def check_path(path: str) -> None:
    """Raises `CoordinationError` unless `path` is absolute and every part has a name that ZooKeeper accepts."""
    if path == "/":
        return
    if not path.startswith("/") or path.endswith("/"):
        raise CoordinationError(f"path {path!r} must begin with '/' and not end with it")
    for part in path[1:].split("/"):
        if part in ("", ".", "..") or "\0" in part:
            raise CoordinationError(f"path {path!r} has a part {part!r}, which is not a valid name")


def check_size(path: str, size: int) -> None:
    """Raises `TooLargeError` if `size` bytes are too many for a node or a transaction."""
    if size > MAX_DATA_BYTES:
        raise TooLargeError(f"{path}: {size} bytes are over the limit of {MAX_DATA_BYTES}")


def check_operations(operations: Sequence[Operation], most: int = MOST_OPERATIONS, prefix: int = 0) -> None:
    """Checks every path, the type of every operation, their number and their total size; raises `TooLargeError` for the
    last two. `prefix`: the length of what the coordination puts before each path."""
    size = len(operations) * (_OPERATION_BYTES + prefix)
    path = "/"
    for operation in operations:
        if not isinstance(operation, Check | Create | Set | Delete):
            raise CoordinationError(f"{operation!r} is not an operation: expected Check, Create, Set or Delete")
        path = operation.path
        check_path(path)
        size += len(path) + (len(operation.data) if isinstance(operation, Create | Set) else 0)
    if len(operations) > most:
        raise TooLargeError(
            f"a transaction that ends with {path}: {len(operations)} operations are over the limit of {most}"
        )
    check_size(f"a transaction that ends with {path}", size)


def parent_of(path: str) -> str:
    """Returns the parent path; `/` for a top-level path and for `/` itself."""
    return path.rpartition("/")[0] or "/"


def ancestors(path: str) -> list[str]:
    """Returns the paths above, from the top down, without `/`."""
    parts = path[1:].split("/")[:-1]
    return ["/" + "/".join(parts[: i + 1]) for i in range(len(parts))]
