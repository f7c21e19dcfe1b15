"""Sequences of coordination requests as generators: each request is yielded, and its answer sent or its error thrown.

So the requests and their order are written once: `run_steps` carries them out on a worker thread, and the simulation
one request at a time, with failures between any two.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple, TypeVar

from ...errors import CoordinationError
from ...interfaces.coordination import Coordination, NoNodeError, Operation, Stat

T = TypeVar("T")


class Get(NamedTuple):
    path: str


class Children(NamedTuple):
    path: str


class Transact(NamedTuple):
    operations: tuple[Operation, ...]


Request = Get | Children | Transact
Answer = tuple[bytes, Stat] | list[str] | None
Steps = Generator[Request, Answer, T]


def get(path: str) -> Steps[tuple[bytes, Stat]]:
    answer = yield Get(path)
    assert isinstance(answer, tuple)
    return answer


def find(path: str) -> Steps[tuple[bytes, Stat] | None]:
    """Reads a path as `get` does; returns None if it does not exist."""
    try:
        return (yield from get(path))
    except NoNodeError:
        return None


def children(path: str) -> Steps[list[str]]:
    answer = yield Children(path)
    assert isinstance(answer, list)
    return answer


def transact(*operations: Operation) -> Steps[None]:
    yield Transact(operations)


def carry_out(coordination: Coordination, request: Request) -> Answer:
    """Carries out one request; raises the coordination's errors."""
    if isinstance(request, Get):
        return coordination.get(request.path)
    if isinstance(request, Children):
        return coordination.children(request.path)
    coordination.transaction(request.operations)
    return None


def run_steps(coordination: Coordination, steps: Steps[T]) -> T:
    """Carries out all steps on the calling thread."""
    try:
        request = next(steps)
        while True:
            try:
                answer = carry_out(coordination, request)
            except CoordinationError as error:
                request = steps.throw(error)
            else:
                request = steps.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result
