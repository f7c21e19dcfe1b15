"""The operations that a client may do, as bit fields (KIP-430): bit n stands for Kafka's ACL operation n.

There is no authorizer, so everybody may do everything that Kafka knows for the kind of resource.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

NOT_ASKED: Final = -(2**31)
"""What stands in the answer when the client did not ask."""


class Operation(IntEnum):
    """Kafka's ACL operations."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


def _bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


_ON_A_GROUP: Final = _bits(
    Operation.READ, Operation.DELETE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
)
_ON_A_TOPIC: Final = _ON_A_GROUP | _bits(Operation.WRITE, Operation.CREATE, Operation.ALTER)
_ON_THE_CLUSTER: Final = _bits(
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)


def on_a_topic(asked: bool) -> int:
    return _ON_A_TOPIC if asked else NOT_ASKED


def on_a_group(asked: bool) -> int:
    return _ON_A_GROUP if asked else NOT_ASKED


def on_the_cluster(asked: bool) -> int:
    return _ON_THE_CLUSTER if asked else NOT_ASKED
