"""The contract of `klamm.plugin.Coordination`: watches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest

from klamm.core.interfaces.coordination import Coordination, Create, Delete, SessionExpiredError, Set
from klamm.testing.contracts.coordination_cases import (
    CoordinationSuite,
    CoordinationUnderTest,
    WatchSignal,
)
from klamm.testing.waiting import eventually

__all__ = ["CoordinationWatchesContract"]


class CoordinationWatchesContract(CoordinationSuite):
    """Define `coordination_case` as for `CoordinationContract`."""

    def test_a_watch_sees_every_kind_of_change_again_and_again(self, coordination_case: CoordinationUnderTest) -> None:
        watcher, writer = coordination_case.open(), coordination_case.open()
        signal = WatchSignal()
        watcher.watch("/a", signal)
        changes: list[Callable[[], object]] = [
            lambda: writer.create("/a"),
            lambda: writer.set("/a", b"1"),
            lambda: writer.set("/a", b"2"),
            lambda: writer.create("/a/b"),
            lambda: writer.create("/a/c", ephemeral=True),
            lambda: writer.delete("/a/b"),
            lambda: writer.transaction([Set("/a", b"3"), Delete("/a/c")]),
            lambda: writer.delete("/a"),
            lambda: writer.transaction([Create("/a"), Create("/a/d")]),
            lambda: writer.delete("/a", recursive=True),
        ]
        for change in changes:
            signal.mark()
            change()
            signal.wait_for_more()

    def test_a_watch_sees_the_changes_of_its_own_session(self, coordination: Coordination) -> None:
        signal = WatchSignal()
        coordination.watch("/a", signal)
        signal.mark()
        coordination.create("/a")
        signal.wait_for_more()

    def test_a_watch_is_of_one_path_and_its_children(self, coordination_case: CoordinationUnderTest) -> None:
        watcher, writer = coordination_case.open(), coordination_case.open()
        writer.create("/a/b/c", make_parents=True)
        on_a, on_elsewhere = WatchSignal(), WatchSignal()
        watcher.watch("/a", on_a)
        watcher.watch("/elsewhere", on_elsewhere)
        on_elsewhere.mark()
        writer.create("/elsewhere")
        on_elsewhere.wait_for_more()  # and what was before it has been told
        before = on_a.count
        on_elsewhere.mark()
        writer.set("/a/b", b"data of a child")
        writer.create("/a/b/d")
        writer.set("/elsewhere", b"1")
        on_elsewhere.wait_for_more()
        assert on_a.count == before

    def test_a_watch_ends_when_cancelled(self, coordination_case: CoordinationUnderTest) -> None:
        watcher, writer = coordination_case.open(), coordination_case.open()
        cancelled, kept = WatchSignal(), WatchSignal()
        watch = watcher.watch("/a", cancelled)
        watcher.watch("/a", kept)
        cancelled.mark()
        kept.mark()
        watch.cancel()
        watch.cancel()
        before = cancelled.count
        for change in (partial(writer.create, "/a"), partial(writer.set, "/a", b"1")):
            change()
            kept.wait_for_more()
            kept.mark()
        assert cancelled.count == before
        later = WatchSignal()
        watcher.watch("/a", later)
        later.mark()
        writer.set("/a", b"2")
        later.wait_for_more()

    def test_the_last_state_is_seen_however_quick_the_changes(self, coordination_case: CoordinationUnderTest) -> None:
        """Callbacks may be merged, but a caller that reads after each callback ends up with the last value."""
        watcher, writer = coordination_case.open(), coordination_case.open()
        writer.create("/a", b"0")
        changed = threading.Event()
        seen: list[int] = []
        done = threading.Event()

        def follow() -> None:
            while not done.is_set():
                changed.wait(60)
                changed.clear()
                seen.append(int(watcher.get("/a")[0]))

        watcher.watch("/a", changed.set)
        follower = threading.Thread(target=follow)
        follower.start()
        for number in range(1, 201):
            writer.set("/a", b"%d" % number)
        eventually(lambda: seen and seen[-1] == 200, "the last of 200 changes")
        done.set()
        changed.set()
        follower.join()
        assert seen == sorted(seen)

    def test_a_callback_that_raises_does_not_stop_the_others(
        self, coordination_case: CoordinationUnderTest, caplog: pytest.LogCaptureFixture
    ) -> None:
        watcher, writer = coordination_case.open(), coordination_case.open()

        def fail() -> None:
            raise RuntimeError("planted")

        signal = WatchSignal()
        watcher.watch("/a", fail)
        watcher.watch("/a", signal)
        for change in (partial(writer.create, "/a"), partial(writer.set, "/a", b"1")):
            signal.mark()
            change()
            signal.wait_for_more()
        assert "planted" in caplog.text

    def test_a_watch_sees_ephemeral_paths_go_with_their_session(self, coordination_case: CoordinationUnderTest) -> None:
        watcher, member = coordination_case.open(), coordination_case.open()
        watcher.create("/ids")
        member.create("/ids/0", ephemeral=True)
        signal = WatchSignal()
        watcher.watch("/ids", signal)
        signal.mark()
        coordination_case.expire(member)
        signal.wait_for_more()
        eventually(lambda: watcher.children("/ids") == [], "the end of the member's path")

    def test_watches_end_with_their_session(self, coordination_case: CoordinationUnderTest) -> None:
        watcher, writer = coordination_case.open(), coordination_case.open()
        old, new = WatchSignal(), WatchSignal()
        watcher.watch("/a", old)
        coordination_case.expire(watcher)
        with pytest.raises(SessionExpiredError):
            watcher.watch("/a", new)
        watcher.restart()
        old.mark()
        before = old.count
        watcher.watch("/a", new)
        new.mark()
        writer.create("/a")
        new.wait_for_more()
        assert old.count == before
