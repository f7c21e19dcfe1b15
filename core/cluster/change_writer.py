"""Writes changes of the metadata: each is planned from the newest image, and again when another change came first.

A write whose answer is lost is looked up in the ring, by the name of the attempt, so that a change is never made twice
and never reported as failed when it was made.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

from ..errors import BrokerError, CoordinationError, ErrorCode
from ..interfaces.coordination import (
    BadVersionError,
    CoordinationUnavailableError,
    NodeExistsError,
    NoNodeError,
    Operation,
)
from ..records.partition import TopicPartition
from ..replication.leader import ProposalOutcome
from ..replication.partition_state import PartitionState
from .changes import MOST_STATES, RING_SIZE, StoredState, change_operations, read_change
from .image import ClusterImage
from .tree.nodes import TopicNode
from .tree.steps import Session, Steps, pause, transact

_log = logging.getLogger(__name__)
MOST_BYTES: Final = 1_000_000
"""ZooKeeper accepts requests of up to 1,048,575 bytes (`jute.maxbuffer`)."""
BYTES_AN_OPERATION: Final = 48
"""What ZooKeeper adds to the path and the data of an operation: its header, and the access list of a created path."""
_OTHER_OPERATIONS: Final = 16
"""The operations in a change beside the partition states: the guard, a registration, the version of the metadata, the
ring, the name of the last change."""
_ATTEMPTS: Final = 30
_FIRST_PAUSE_S: Final = 0.005
_LONGEST_PAUSE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Plan:
    """A change that was made from one image: see `changes.MetadataChange`. `operations` come before the states."""

    states: Mapping[TopicPartition, PartitionState] = field(default_factory=dict)
    topics: Mapping[str, TopicNode | None] = field(default_factory=dict)
    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    operations: Sequence[Operation] = ()


Guard = Callable[[bool], Steps[Sequence[Operation]]]
"""Returns the checks that hold while the writer may write; raises `BrokerError` if it may no longer. The argument is
True if the last attempt was refused, perhaps by these checks."""
Planner = Callable[[ClusterImage], Steps[Plan | None]]
"""Returns the change from an image; None if nothing is to be changed; raises `BrokerError` if it cannot be made."""


def no_guard(_: bool) -> Steps[Sequence[Operation]]:
    """The guard of changes that any broker may make, or that have checks of their own."""
    yield from ()
    return ()


def name_of_writer(broker_id: int) -> str:
    """Returns a new name for the changes of one broker's process."""
    return f"{broker_id}-{uuid4().hex}"


def writer_of(by: str) -> int:
    """Returns the broker that made the change named `by`; -1 if the name has no broker in it."""
    broker_id = by.partition("-")[0]
    return int(broker_id) if broker_id.isdecimal() else -1


class ChangeWriter:
    """Without I/O. `read` reads the newest image and publishes it; if its argument is True it reads the whole tree."""

    def __init__(
        self,
        session: Session,
        read: Callable[[bool], Steps[ClusterImage]],
        name: str,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """`name` is unique to this object, in all processes; `uniform` returns a random number between two."""
        self._session = session
        self._uniform = uniform
        self._read = read
        self._name = name
        self._numbers = itertools.count()

    @property
    def most_states(self) -> int:
        """The number of existing partitions that one change may have."""
        return min(MOST_STATES, self.most_operations - _OTHER_OPERATIONS)

    @property
    def most_operations(self) -> int:
        """The number of operations that the coordination takes in one change."""
        return self._session.most_operations

    def change(self, guard: Guard, plan_for: Planner, image: ClusterImage | None = None) -> Steps[ClusterImage | None]:
        """Makes a change and returns the image after it; None if there was nothing to change. The first attempt is
        planned from `image` if it is given; else the image is read.

        Raises what `guard` and `plan_for` raise; `CoordinationUnavailableError` if the coordination does not answer, or
        other changes come first at every attempt.
        """
        unanswered: dict[str, int] = {}
        image = image or (yield from self._read(False))
        refusal: CoordinationError | None = None
        for attempt in range(_ATTEMPTS):
            if (yield from self._was_made(unanswered, image.version)):
                return image
            plan = yield from plan_for(image)
            if plan is None:
                return None
            by = self._next_name()
            operations = self._operations((yield from guard(refusal is not None)), image, plan, by)
            refusal = None
            try:
                yield from transact(*operations)
            except CoordinationUnavailableError:
                unanswered[by] = image.version
            except (BadVersionError, NoNodeError, NodeExistsError) as error:
                refusal = error
            else:
                return (yield from self._read(False))
            longest = min(_FIRST_PAUSE_S * 2**attempt, _LONGEST_PAUSE_S)
            yield from pause(self._uniform(0, longest))
            before = image
            image = yield from self._read(False)
            if refusal is not None and image.version == before.version:
                image = yield from self._read_again(before, refusal)
        raise CoordinationUnavailableError(f"the metadata kept changing for {_ATTEMPTS} attempts to change them")

    def attempt(self, guard: Sequence[Operation], image: ClusterImage, plan: Plan) -> Steps[ProposalOutcome]:
        """Makes one attempt, on condition that the image is still the newest. REFUSED: it was not made and never will
        be. Raises `BrokerError` if the change is too large."""
        operations = self._operations(guard, image, plan, self._next_name())
        try:
            yield from transact(*operations)
        except (BadVersionError, NoNodeError, NodeExistsError):
            return ProposalOutcome.REFUSED
        except CoordinationError as error:
            # Also when the session has ended: the request may have been carried out before, and its answer lost.
            _log.info("a change was not answered: %s", error)
            return ProposalOutcome.UNKNOWN
        return ProposalOutcome.APPLIED

    def _next_name(self) -> str:
        return f"{self._name}/{next(self._numbers)}"

    def _read_again(self, before: ClusterImage, refusal: CoordinationError) -> Steps[ClusterImage]:
        """Reads the whole tree, which differs from an image of the same version only if something was written outside
        the order of changes."""
        image = yield from self._read(True)
        if image == before:
            raise refusal
        return image

    def _was_made(self, unanswered: Mapping[str, int], version: int) -> Steps[bool]:
        """Returns True if one of these attempts, each with the version it was made from, is in the ring."""
        for base in sorted({base for base in unanswered.values() if base < version}):
            made = yield from read_change(base + 1)
            if made is None and version - base > RING_SIZE:  # its entry may have been overwritten
                raise CoordinationUnavailableError(
                    f"a change of version {base + 1} was not answered, and {version - base} later changes hide its fate"
                )
            if made is not None and made.by in unanswered:
                return True
        return False

    def _operations(self, guard: Sequence[Operation], image: ClusterImage, plan: Plan, by: str) -> list[Operation]:
        stored = {}
        for tp in plan.states:
            partition = image.partition(tp)
            if partition is not None:
                stored[tp] = StoredState(partition.state, partition.path_version)
        operations = change_operations(
            guard,
            image.version,
            image.by,
            stored,
            plan.states,
            by,
            operations=plan.operations,
            topics=plan.topics,
            configs=plan.configs,
        )
        most = self.most_operations
        if len(operations) > most:
            raise BrokerError(
                ErrorCode.invalid_request,
                f"the change has {len(operations)} operations, the coordination takes {most} at most in one "
                "transaction; make it in smaller steps",
            )
        size = sum(BYTES_AN_OPERATION + len(o.path) + len(getattr(o, "data", b"")) for o in operations)
        if size > MOST_BYTES:
            raise BrokerError(
                ErrorCode.invalid_request,
                f"the change takes {size} bytes in the coordination, {MOST_BYTES} at most; make it in smaller steps",
            )
        return operations
