"""Sequences of coordination requests as generators: each request is yielded, and its answer is sent into the generator
or its error thrown.

So the requests and their order are written once, without I/O and threads: `StepRunner` carries them out on a worker
thread, and the simulation one request at a time, with failures between any two. Besides reads and writes of the
coordination a sequence may pause, wait for a path, connect to a broker, restart the session, and wait for a mutex.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

from ...errors import CoordinationError
from ...interfaces.coordination import Coordination, NodeExistsError, NoNodeError, Operation, Stat

T = TypeVar("T")
P = ParamSpec("P")
Found = tuple[bytes, Stat]


class Mutex(Protocol):
    """Excludes the sequences of one broker from each other: a `threading.Lock`, or one in virtual time."""

    def acquire(self) -> object: ...

    def release(self) -> None: ...


class Session(Protocol):
    """What a sequence may read of the coordination without a request; see `interfaces.coordination.Coordination`."""

    @property
    def session_id(self) -> int: ...

    @property
    def session_timeout_s(self) -> float: ...

    @property
    def most_operations(self) -> int: ...


class Get(NamedTuple):
    path: str


class GetMany(NamedTuple):
    paths: tuple[str, ...]


class Children(NamedTuple):
    path: str


class Transact(NamedTuple):
    operations: tuple[Operation, ...]


class CreateBelow(NamedTuple):
    """Creates a path and its missing parents."""

    path: str
    data: bytes


class Restart(NamedTuple):
    """Opens a new session after the end of the last one."""


class Pause(NamedTuple):
    seconds: float


class AwaitChange(NamedTuple):
    """Waits until the path is deleted, or the given time has passed."""

    path: str
    seconds: float


class SetWatches(NamedTuple):
    """Sets watches in the present session, in place of those of the last one; each wakes the broker."""

    paths: tuple[str, ...]


class Connect(NamedTuple):
    """Answered with False if the broker (a `BrokerNode`) refuses connections."""

    broker: Any


class Acquire(NamedTuple):
    mutex: Mutex


Request = (
    Get | GetMany | Children | Transact | CreateBelow | Restart | SetWatches | Pause | AwaitChange | Connect | Acquire
)
Answer = Any
"""The answer, whose type depends on the request: see the functions below."""
Steps = Generator[Request, Answer, T]


def get(path: str) -> Steps[Found]:
    """Raises `NoNodeError` if the path does not exist."""
    found: Found = yield Get(path)
    return found


def find(path: str) -> Steps[Found | None]:
    """Reads a path as `get` does; returns None if it does not exist."""
    try:
        return (yield from get(path))
    except NoNodeError:
        return None


def exists(path: str) -> Steps[bool]:
    return (yield from find(path)) is not None


def get_many(wanted: Sequence[str]) -> Steps[dict[str, Found]]:
    """Reads the paths at once; those that do not exist are left out, such as those deleted after they were listed."""
    if not wanted:
        return {}
    found: Sequence[Found | None] = yield GetMany(tuple(wanted))
    return {path: data for path, data in zip(wanted, found, strict=True) if data is not None}


def children(path: str) -> Steps[list[str]]:
    names: list[str] = yield Children(path)
    return names


def transact(*operations: Operation) -> Steps[None]:
    yield Transact(operations)


def create_below(path: str, data: bytes) -> Steps[None]:
    """Creates the path and its parents. Raises `NodeExistsError` if it exists."""
    yield CreateBelow(path, data)


def create_if_missing(path: str, data: bytes) -> Steps[None]:
    try:
        yield CreateBelow(path, data)
    except NodeExistsError:
        return  # another broker created it first


def restart() -> Steps[None]:
    yield Restart()


def set_watches(paths: Sequence[str]) -> Steps[None]:
    yield SetWatches(tuple(paths))


def pause(seconds: float) -> Steps[None]:
    yield Pause(seconds)


def await_change(path: str, seconds: float) -> Steps[None]:
    yield AwaitChange(path, seconds)


def connects(broker: Any) -> Steps[bool]:
    answer: bool = yield Connect(broker)
    return answer


def holding(mutex: Mutex, steps: Steps[T]) -> Steps[T]:
    """Carries out the steps while no other sequence holds the mutex."""
    yield Acquire(mutex)
    try:
        return (yield from steps)
    finally:
        mutex.release()


def plain(call: Callable[P, T]) -> Callable[P, Steps[T]]:
    """Wraps a function without requests as one that returns steps."""

    def steps(*args: P.args, **kwargs: P.kwargs) -> Steps[T]:
        yield from ()
        return call(*args, **kwargs)

    return steps


class StepRunner:
    """Carries out steps on the calling thread. `sleep` waits for some seconds, or less if its owner stops meanwhile;
    `is_reachable` connects to a broker; `set_watches` carries out `SetWatches`."""

    def __init__(
        self,
        coordination: Coordination,
        sleep: Callable[[float], object] = time.sleep,
        is_reachable: Callable[[Any], bool] = lambda _: True,
        set_watches: Callable[[Sequence[str]], None] = lambda _: None,
    ) -> None:
        self._set_watches = set_watches
        self._coordination = coordination
        self._sleep = sleep
        self._is_reachable = is_reachable

    def run(self, steps: Steps[T]) -> T:
        """Returns the result of the steps, or raises their error."""
        try:
            request = next(steps)
            while True:
                try:
                    answer = self._carry_out(request)
                except Exception as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    def _carry_out(self, request: Request) -> Answer:
        if isinstance(request, Pause):
            return self._sleep(request.seconds)
        if isinstance(request, Acquire):
            return request.mutex.acquire()
        if isinstance(request, Connect):
            return self._is_reachable(request.broker)
        if isinstance(request, SetWatches):
            return self._set_watches(request.paths)
        if isinstance(request, AwaitChange):
            return self._await_change(request)
        return carry_out(self._coordination, request)

    def _await_change(self, request: AwaitChange) -> None:
        changed = threading.Event()
        watch = self._coordination.watch(request.path, changed.set)
        deadline = time.monotonic() + request.seconds
        try:
            while self._coordination.exists(request.path) is not None:
                if not changed.wait(max(0.0, deadline - time.monotonic())):
                    return
                changed.clear()
        finally:
            watch.cancel()


def carry_out(coordination: Coordination, request: Request) -> Answer:
    """Carries out one request of the coordination; raises its errors."""
    if isinstance(request, Get):
        return coordination.get(request.path)
    if isinstance(request, GetMany):
        return coordination.get_many(request.paths)
    if isinstance(request, Children):
        return coordination.children(request.path)
    if isinstance(request, Transact):
        return coordination.transaction(request.operations)
    if isinstance(request, CreateBelow):
        return coordination.create(request.path, request.data, make_parents=True)
    if isinstance(request, Restart):
        return coordination.restart()
    raise CoordinationError(f"no request of the coordination: {request!r}")


def run_steps(coordination: Coordination, steps: Steps[T]) -> T:
    """Carries out all steps on the calling thread."""
    return StepRunner(coordination).run(steps)
