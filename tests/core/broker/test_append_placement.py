from __future__ import annotations

from collections.abc import Callable

from klamm.core.broker.append_placement import ON_LOOP_BYTES, AppendPlacement


class Disk:
    """A clock, and a thread that sleeps when the disk holds it up."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sleeps = 0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.placement = AppendPlacement(self.call_later, lambda: self.sleeps)

    def call_later(self, delay: float, callback: Callable[[], None], /) -> None:
        self.timers.append((self.now + delay, callback))

    def passes(self, seconds: float) -> None:
        self.now += seconds
        for timer in sorted(self.timers, key=lambda timer: timer[0]):
            if timer[0] <= self.now:
                self.timers.remove(timer)
                timer[1]()

    def append(self, size: int = 100, *, long: bool = False, held_up: bool = False) -> str:
        placement = self.placement
        if size > placement.on_loop_bytes and placement.needs_worker(size):
            return "worker"
        if held_up:
            self.sleeps += 1
        if long or held_up:
            placement.took_long()
        return "loop"


def test_appends_run_on_the_loop_unless_they_are_large() -> None:
    disk = Disk()
    assert disk.append() == "loop"
    assert disk.append(ON_LOOP_BYTES) == "loop"
    assert disk.append(ON_LOOP_BYTES + 1) == "worker"


def test_appends_that_are_held_up_move_to_worker_threads_for_a_while() -> None:
    disk = Disk()
    assert disk.append(held_up=True) == "loop", "the first one is only noted"
    assert disk.append(held_up=True) == "loop"
    assert disk.append() == "worker"
    disk.passes(1)
    assert disk.append() == "loop"
    assert disk.placement.held_up == 1


def test_a_busy_processor_moves_nothing() -> None:
    disk = Disk()
    for _ in range(10):
        assert disk.append(long=True) == "loop"
    assert disk.append() == "loop"


def test_the_pause_grows_while_appends_are_held_up_after_it() -> None:
    disk = Disk()
    disk.append(held_up=True)
    disk.append(held_up=True)
    disk.passes(1)
    assert disk.append(held_up=True) == "loop"
    disk.passes(1)
    assert disk.append() == "worker"
    disk.passes(1)
    assert disk.append() == "loop"


def test_after_quiet_seconds_the_first_long_append_is_only_noted_again() -> None:
    disk = Disk()
    disk.append(held_up=True)
    disk.append(held_up=True)
    disk.passes(1)
    disk.append()
    disk.passes(2)
    assert disk.placement.on_loop_bytes == ON_LOOP_BYTES
    disk.append(held_up=True)
    assert disk.append() == "loop"
    disk.append(held_up=True)
    disk.passes(1)
    assert disk.append() == "loop", "the pause is the first one again"


def test_an_end_of_an_older_watch_does_not_end_a_newer_one() -> None:
    disk = Disk()
    disk.append(held_up=True)
    disk.append(held_up=True)
    disk.passes(1)
    disk.passes(1)
    assert disk.placement.on_loop_bytes < 0
    disk.passes(1)
    assert disk.placement.on_loop_bytes == ON_LOOP_BYTES
