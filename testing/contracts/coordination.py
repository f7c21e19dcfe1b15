"""The contract of `klamm.plugin.Coordination`: paths, versions, ephemeral paths, transactions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest

from klamm.core.errors import CoordinationError, ErrorCode
from klamm.core.interfaces.coordination import (
    ANY_VERSION,
    BadVersionError,
    Check,
    Coordination,
    CoordinationUnavailableError,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    Set,
)
from klamm.testing.contracts.coordination_cases import (
    CoordinationSuite,
    CoordinationUnderTest,
)
from klamm.testing.waiting import eventually

__all__ = ["CoordinationContract"]


def _together(jobs: list[Callable[[], None]]) -> None:
    """Runs each function on its own thread; raises the first failure."""
    failures: list[BaseException] = []

    def guarded(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


class CoordinationContract(CoordinationSuite):
    """The suite of a coordination. Define `coordination_case`, a fixture that returns a `CoordinationUnderTest` on
    an empty tree."""

    def test_create_and_get(self, coordination: Coordination) -> None:
        created = coordination.create("/a", b"one")
        data, stat = coordination.get("/a")
        assert data == b"one"
        assert stat == created
        assert stat.version == 0
        assert stat.ephemeral_owner == 0
        assert stat.ctime_ms == stat.mtime_ms > 1_600_000_000_000

    def test_the_root_is_there_and_stays(self, coordination: Coordination) -> None:
        assert coordination.exists("/") is not None
        assert coordination.children("/") == []
        with pytest.raises(NodeExistsError, match="/"):
            coordination.create("/")
        with pytest.raises(CoordinationError):
            coordination.set("/nothing", b"")

    def test_create_twice(self, coordination: Coordination) -> None:
        coordination.create("/a", b"first")
        with pytest.raises(NodeExistsError, match="/a"):
            coordination.create("/a", b"second")
        assert coordination.get("/a")[0] == b"first"

    def test_create_without_parent(self, coordination: Coordination) -> None:
        with pytest.raises(NoNodeError, match="/a/b"):
            coordination.create("/a/b")
        coordination.create("/a/b/c", b"deep", make_parents=True)
        assert coordination.get("/a/b")[0] == b""
        coordination.create("/a/b/d", b"again", make_parents=True)
        assert coordination.children("/a/b") == ["c", "d"]

    @pytest.mark.parametrize("path", ["", "a", "/a/", "//a", "/a//b", "/.", "/a/..", "/a\0"])
    def test_paths_that_are_none(self, coordination: Coordination, path: str) -> None:
        for use in (
            coordination.get,
            coordination.exists,
            coordination.children,
            coordination.create,
            coordination.delete,
        ):
            with pytest.raises(CoordinationError, match="path"):
                use(path)
        with pytest.raises(CoordinationError, match="path"):
            coordination.transaction([Create(path)])

    def test_data_of_any_bytes_up_to_the_limit(self, coordination: Coordination) -> None:
        data = bytes(range(256)) * 3900
        coordination.create("/a", data)
        assert coordination.get("/a")[0] == data
        for too_large in (
            partial(coordination.create, "/b", bytes(1_000_001)),
            partial(coordination.set, "/a", bytes(1_000_001)),
        ):
            with pytest.raises(CoordinationError, match="limit"):
                too_large()
        with pytest.raises(CoordinationError, match="limit"):
            coordination.transaction([Create("/b", bytes(600_000)), Create("/c", bytes(600_000))])
        assert coordination.children("/") == ["a"]

    def test_exists(self, coordination: Coordination) -> None:
        assert coordination.exists("/a") is None
        created = coordination.create("/a")
        assert coordination.exists("/a") == created

    def test_get_of_nothing(self, coordination: Coordination) -> None:
        with pytest.raises(NoNodeError, match="/a"):
            coordination.get("/a")

    def test_many_are_read_in_the_order_asked_for(self, coordination: Coordination) -> None:
        a, b = coordination.create("/a", b"one"), coordination.create("/a/b", b"two")
        found = coordination.get_many(["/a/b", "/none", "/a", "/a/none/below", "/a/b"])
        assert found == [(b"two", b), None, (b"one", a), None, (b"two", b)]
        assert coordination.get_many([]) == []
        with pytest.raises(CoordinationError, match="path"):
            coordination.get_many(["/a", "none"])

    def test_thousands_are_read_at_once(self, coordination: Coordination) -> None:
        coordination.create("/top")
        paths = [f"/top/{number}" for number in range(2000)]
        for first in range(0, 2000, 500):
            coordination.transaction(
                [Create(path, path.encode()) for path in paths[first : first + 500] if path[-1] != "7"]
            )
        asked = paths[::-1]
        read = coordination.get_many(asked)
        assert [found and found[0] for found in read] == [None if path[-1] == "7" else path.encode() for path in asked]
        assert coordination.get_many(["/none"] * 2000) == [None] * 2000

    def test_set_raises_the_version(self, coordination: Coordination) -> None:
        created = coordination.create("/a", b"0")
        stats = [coordination.set("/a", b"%d" % number) for number in (1, 2)]
        assert [stat.version for stat in stats] == [1, 2]
        assert coordination.get("/a") == (b"2", stats[1])
        assert stats[1].creation_id == created.creation_id
        assert stats[1].mtime_ms >= created.mtime_ms

    def test_set_of_nothing(self, coordination: Coordination) -> None:
        with pytest.raises(NoNodeError, match="/a"):
            coordination.set("/a", b"")

    def test_set_at_a_version(self, coordination: Coordination) -> None:
        coordination.create("/a", b"0")
        coordination.set("/a", b"1", 0)
        with pytest.raises(BadVersionError, match="/a"):
            coordination.set("/a", b"2", 0)
        coordination.set("/a", b"3", ANY_VERSION)
        assert coordination.get("/a")[0] == b"3"

    def test_delete(self, coordination: Coordination) -> None:
        coordination.create("/a")
        coordination.set("/a", b"")
        with pytest.raises(BadVersionError, match="/a"):
            coordination.delete("/a", 0)
        coordination.delete("/a", 1)
        assert coordination.exists("/a") is None
        with pytest.raises(NoNodeError, match="/a"):
            coordination.delete("/a")

    def test_delete_with_children(self, coordination: Coordination) -> None:
        coordination.create("/a/b/c", make_parents=True)
        coordination.create("/ab", b"a neighbour whose name begins alike")
        with pytest.raises(NotEmptyError, match="/a"):
            coordination.delete("/a")
        with pytest.raises(BadVersionError, match="/a"):
            coordination.delete("/a", 7, recursive=True)
        assert coordination.exists("/a/b/c") is not None
        coordination.delete("/a", 0, recursive=True)
        assert coordination.children("/") == ["ab"]
        with pytest.raises(NoNodeError, match="/a"):
            coordination.delete("/a", recursive=True)

    def test_children_are_names_in_order(self, coordination: Coordination) -> None:
        for name in ("b", "a", "c"):
            coordination.create(f"/top/{name}/below", make_parents=True)
        assert coordination.children("/top") == ["a", "b", "c"]
        assert coordination.children("/top/a/below") == []
        with pytest.raises(NoNodeError, match="/none"):
            coordination.children("/none")

    def test_names_of_unicode_and_wildcards(self, coordination: Coordination) -> None:
        for name in ("größe", "%_", "a b", "[x]*"):
            coordination.create(f"/{name}", name.encode())
            assert coordination.get(f"/{name}")[0] == name.encode()
        coordination.create("/%_/below")
        coordination.delete("/%_", recursive=True)
        assert coordination.children("/") == sorted(["größe", "a b", "[x]*"])

    def test_creation_ids_grow_over_all_paths_and_sessions(self, coordination_case: CoordinationUnderTest) -> None:
        one, other = coordination_case.open(), coordination_case.open()
        seen = [session.create(f"/{number}").creation_id for number, session in enumerate([one, other, other, one])]
        one.delete("/0")
        seen.append(other.create("/0").creation_id)
        assert seen == sorted(set(seen))

    def test_ephemeral_paths_belong_to_a_session(self, coordination_case: CoordinationUnderTest) -> None:
        owner, other = coordination_case.open(), coordination_case.open()
        assert owner.session_id not in (0, other.session_id)
        created = owner.create("/live", b"me", ephemeral=True)
        assert created.ephemeral_owner == owner.session_id
        assert other.get("/live") == (b"me", created)
        with pytest.raises(NodeExistsError):
            other.create("/live", ephemeral=True)
        other.create("/stays")
        owner.close()
        assert owner.session_id == 0
        eventually(lambda: other.exists("/live") is None, "the end of an ephemeral path")
        assert other.children("/") == ["stays"]

    def test_ephemeral_paths_have_no_children(self, coordination: Coordination) -> None:
        coordination.create("/live", ephemeral=True)
        with pytest.raises(CoordinationError, match="/live/below"):
            coordination.create("/live/below")
        with pytest.raises(CoordinationError, match="/live/below"):
            coordination.transaction([Create("/live/below")])

    def test_ephemeral_paths_may_be_deleted_by_anyone(self, coordination_case: CoordinationUnderTest) -> None:
        owner, other = coordination_case.open(), coordination_case.open()
        owner.create("/live", ephemeral=True)
        other.delete("/live")
        assert owner.exists("/live") is None

    def test_transaction_of_every_kind(self, coordination: Coordination) -> None:
        coordination.create("/check", b"")
        coordination.create("/set", b"old")
        coordination.create("/delete", b"")
        coordination.transaction(
            [
                Check("/check", 0),
                Create("/made", b"new", ephemeral=True),
                Set("/set", b"new", 0),
                Delete("/delete", 0),
            ]
        )
        assert coordination.children("/") == ["check", "made", "set"]
        assert coordination.get("/made")[0] == b"new"
        assert coordination.get("/made")[1].ephemeral_owner == coordination.session_id
        assert coordination.get("/set")[0] == b"new"
        assert coordination.get("/check")[1].version == 0
        coordination.transaction([])

    def test_a_transaction_sees_its_own_operations_in_order(self, coordination: Coordination) -> None:
        coordination.transaction(
            [
                Create("/a", b"1"),
                Create("/a/b", b"2"),
                Set("/a", b"3", 0),
                Check("/a", 1),
                Delete("/a/b"),
                Create("/a/b", b"4", ephemeral=True),
            ]
        )
        assert coordination.get("/a")[0] == b"3"
        assert coordination.get("/a/b")[0] == b"4"

    @pytest.mark.parametrize(
        ("failing", "error"),
        [
            (Check("/none"), NoNodeError),
            (Check("/there", 5), BadVersionError),
            (Create("/there"), NodeExistsError),
            (Create("/none/below"), NoNodeError),
            (Set("/none", b""), NoNodeError),
            (Set("/there", b"", 5), BadVersionError),
            (Delete("/none"), NoNodeError),
            (Delete("/there", 5), BadVersionError),
            (Delete("/parent"), NotEmptyError),
        ],
        ids=str,
    )
    def test_a_transaction_fails_as_a_whole_and_names_the_path(
        self, coordination: Coordination, failing: Check | Create | Set | Delete, error: type[CoordinationError]
    ) -> None:
        coordination.create("/there", b"old")
        coordination.create("/parent/child", make_parents=True)
        with pytest.raises(error, match=failing.path):
            coordination.transaction([Set("/there", b"new"), Create("/before"), failing, Create("/after")])
        assert coordination.children("/") == ["parent", "there"]
        assert coordination.get("/there")[0] == b"old"
        assert coordination.get("/there")[1].version == 0

    def test_a_change_of_500_partitions_is_one_transaction(self, coordination: Coordination) -> None:
        """As the controller makes it: a guard, the states at their versions, and the change itself."""
        topics = [f"/brokers/topics/t{number}" for number in range(10)]
        states = [f"{topic}/partitions/{number}/state" for topic in topics for number in range(50)]
        for path in ["/guard", "/version", "/change", *(f"{topic}/partitions" for topic in topics)]:
            coordination.create(path, make_parents=True)
        coordination.transaction([Create(state.rpartition("/")[0]) for state in states])
        change: list[Operation] = [Check("/guard", 0), Set("/version", b"1", 0), Set("/change", bytes(150_000), 0)]
        assert coordination.most_operations >= 1010
        coordination.transaction([*change, *(Create(state, b"0" * 300) for state in states)])
        checks = [Check(state.rpartition("/")[0], 0) for state in states]
        coordination.transaction([Check("/guard"), *checks, *(Set(state, b"1" * 300, 0) for state in states)])
        assert {found and (found[0], found[1].version) for found in coordination.get_many(states)} == {(b"1" * 300, 1)}
        with pytest.raises(BadVersionError, match=f"{states[-1]} "):
            coordination.transaction([*(Set(state, b"2", 1) for state in states[:-1]), Set(states[-1], b"2", 7)])
        assert coordination.get(states[0])[0] == b"1" * 300

    def test_a_transaction_of_too_many_operations_is_refused(self, coordination: Coordination) -> None:
        most = coordination.most_operations
        coordination.transaction([Check("/")] * most)
        with pytest.raises(CoordinationError, match=f"{most + 1} operations are over the limit of {most}") as caught:
            coordination.transaction([Check("/")] * (most + 1))
        assert caught.value.code is ErrorCode.message_too_large

    def test_the_first_failure_is_the_one_raised(self, coordination: Coordination) -> None:
        with pytest.raises(NoNodeError, match="/first"):
            coordination.transaction([Set("/first", b""), Check("/second")])

    def test_conditional_writes_from_many_threads_lose_nothing(self, coordination_case: CoordinationUnderTest) -> None:
        sessions = [coordination_case.open() for _ in range(2)]
        sessions[0].create("/count", b"0")

        def increment(session: Coordination) -> None:
            for _ in range(15):
                while True:
                    data, stat = session.get("/count")
                    try:
                        session.set("/count", b"%d" % (int(data) + 1), stat.version)
                        break
                    except BadVersionError:
                        continue

        _together([partial(increment, session) for session in sessions * 3])
        assert sessions[0].get("/count")[0] == b"90"

    def test_one_of_many_creates_wins(self, coordination_case: CoordinationUnderTest) -> None:
        sessions = [coordination_case.open() for _ in range(2)]
        won: list[int] = []

        def claim(number: int) -> None:
            try:
                sessions[number % 2].create("/claimed", b"%d" % number)
            except NodeExistsError:
                return
            won.append(number)

        _together([partial(claim, number) for number in range(8)])
        assert len(won) == 1
        assert sessions[0].get("/claimed")[0] == b"%d" % won[0]

    def test_transactions_from_many_threads_keep_two_paths_equal(
        self, coordination_case: CoordinationUnderTest
    ) -> None:
        sessions = [coordination_case.open() for _ in range(2)]
        sessions[0].transaction([Create("/x", b"0"), Create("/y", b"0")])

        def increment(session: Coordination) -> None:
            for _ in range(10):
                while True:
                    data, stat = session.get("/x")
                    new = b"%d" % (int(data) + 1)
                    try:
                        session.transaction([Set("/x", new, stat.version), Set("/y", new)])
                        break
                    except BadVersionError:
                        continue

        _together([partial(increment, session) for session in sessions * 2])
        assert sessions[0].get("/x")[0] == sessions[0].get("/y")[0] == b"40"

    def test_what_a_session_knew_does_not_decide(self, coordination_case: CoordinationUnderTest) -> None:
        """Errors and versions are those of now, whatever the session has read or written before."""
        one, other = coordination_case.open(), coordination_case.open()
        one.transaction([Create("/a", b"0"), Create("/parent"), Create("/parent/b", ephemeral=True)])
        one.set("/a", b"1", 0)
        other.set("/a", b"2", 1)
        with pytest.raises(BadVersionError, match="/a"):
            one.set("/a", b"late", 1)
        assert one.set("/a", b"3", 2).version == 3
        other.delete("/a")
        again = other.create("/a", b"another")
        assert one.set("/a", b"4").version == 1
        assert one.get("/a")[1].creation_id == again.creation_id
        other.delete("/a")
        with pytest.raises(NoNodeError, match="/a"):
            one.set("/a", b"5")
        other.delete("/parent", recursive=True)
        with pytest.raises(NoNodeError, match="/parent/c"):
            one.create("/parent/c")
        other.transaction([Create("/parent", ephemeral=True), Create("/c")])
        with pytest.raises(CoordinationError, match="/parent/c"):
            one.create("/parent/c")
        with pytest.raises(NodeExistsError, match="/c"):
            one.create("/c")
        other.delete("/c")
        assert one.create("/c", b"mine").version == 0
        assert one.children("/") == ["c", "parent"]

    def test_nothing_works_before_start_or_after_close(self, coordination_case: CoordinationUnderTest) -> None:
        coordination = coordination_case.make()
        assert coordination.session_id == 0
        for _ in range(2):
            with pytest.raises(CoordinationUnavailableError):
                coordination.get("/")
            with pytest.raises(CoordinationUnavailableError):
                coordination.create("/a")
            with pytest.raises(CoordinationUnavailableError):
                coordination.watch("/a", lambda: None)
            coordination.start()
            coordination.start()
            coordination.close()
            coordination.close()

    def test_a_closed_one_may_be_started_again(self, coordination_case: CoordinationUnderTest) -> None:
        coordination = coordination_case.open()
        coordination.create("/a")
        coordination.close()
        coordination.start()
        assert coordination.exists("/a") is not None
