"""Fetch sessions (KIP-227) at both ends, against each other."""

from __future__ import annotations

from itertools import count
from random import Random

import pytest
from kio.schema.errors import ErrorCode

from klamm.core.broker.handlers.fetch import session_weight
from klamm.core.replication.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchSessionCache,
    FetchSessionHandler,
    FetchSessionRequest,
    next_epoch,
)
from klamm.core.replication.replica_fetch import EpochEndOffset, ReplicaFetchData


def cache_of(max_sessions: int = 10) -> FetchSessionCache[str, int]:
    ids = count(1)
    return FetchSessionCache(max_sessions, 1_000, lambda: next(ids))


def handler_of(*partitions: str) -> FetchSessionHandler[str, int]:
    handler: FetchSessionHandler[str, int] = FetchSessionHandler()
    for partition in partitions:
        handler.want(partition, 0)
    return handler


def exchange(
    handler: FetchSessionHandler[str, int],
    cache: FetchSessionCache[str, int],
    answers: dict[str, ReplicaFetchData],
    now: float = 0.0,
) -> tuple[FetchSessionRequest[str, int], dict[str, int], dict[str, ReplicaFetchData]]:
    """The request, what the broker takes it to ask for, and the answers that travel."""
    request = handler.next_request()
    context = cache.context(request, from_follower=True, now_ms=now)
    asked = dict(context)
    error, session_id, sent = context.response(
        {key: answers.get(key, ReplicaFetchData(high_watermark=0)) for key in asked}
    )
    handler.on_response(error, session_id)
    return request, asked, sent


def test_only_changes_travel() -> None:
    handler, cache = handler_of("a", "b", "c"), cache_of()
    request, asked, sent = exchange(handler, cache, {})
    assert (request.epoch, request.partitions) == (INITIAL_EPOCH, {"a": 0, "b": 0, "c": 0})
    assert list(sent) == ["a", "b", "c"]
    request, asked, sent = exchange(handler, cache, {})
    assert (request.epoch, request.partitions, sent) == (1, {}, {})
    assert asked == {"a": 0, "b": 0, "c": 0}
    handler.want("b", 7)
    handler.forget("a")
    handler.want("d", 0)
    request, asked, sent = exchange(handler, cache, {"b": ReplicaFetchData(high_watermark=7, records=b"r")})
    assert (request.partitions, request.forgotten) == ({"b": 7, "d": 0}, ("a",))
    assert asked == {"b": 7, "c": 0, "d": 0}
    assert list(sent) == ["b", "d"]


@pytest.mark.parametrize(
    "news",
    [
        ReplicaFetchData(high_watermark=5),
        ReplicaFetchData(high_watermark=0, log_start_offset=3),
        ReplicaFetchData(high_watermark=0, records=b"r"),
        ReplicaFetchData(high_watermark=0, diverging_epoch=EpochEndOffset(3, 7)),
        ReplicaFetchData(ErrorCode.not_leader_or_follower),
    ],
    ids=["watermark", "log start", "records", "divergence", "error"],
)
def test_what_is_new_is_sent(news: ReplicaFetchData) -> None:
    handler, cache = handler_of("a", "b"), cache_of()
    exchange(handler, cache, {})
    assert exchange(handler, cache, {"b": news})[2] == {"b": news}


def test_after_an_error_the_bounds_are_sent_again() -> None:
    handler, cache = handler_of("a"), cache_of()
    exchange(handler, cache, {})
    exchange(handler, cache, {"a": ReplicaFetchData(ErrorCode.not_leader_or_follower, high_watermark=0)})
    assert list(exchange(handler, cache, {})[2]) == ["a"]


def test_whoever_was_answered_comes_last_next_time() -> None:
    handler, cache = handler_of("a", "b", "c"), cache_of()
    exchange(handler, cache, {})
    exchange(handler, cache, {"a": ReplicaFetchData(high_watermark=0, records=b"r")})
    assert list(exchange(handler, cache, {})[1]) == ["b", "c", "a"]


def test_one_that_had_no_room_for_its_records_comes_first_though_its_bounds_were_sent() -> None:
    """A consumer far behind in one partition, whose records fill each response, beside one that is appended to all the
    time: it would read nothing of the second until it has read the first to its end."""
    handler, cache = handler_of("far behind", "appended to"), cache_of()
    exchange(handler, cache, {})
    firsts = []
    for round_ in range(1, 5):
        request = handler.next_request()
        context = cache.context(request, from_follower=True, now_ms=0)
        asked = list(dict(context))
        firsts.append(asked[0])
        bounds = {"far behind": 1_000, "appended to": round_}
        answers = {key: ReplicaFetchData(high_watermark=bounds[key], records=b"") for key in asked}
        answers[asked[0]] = ReplicaFetchData(high_watermark=bounds[asked[0]], records=b"all that there is room for")
        error, session_id, _ = context.response(answers)
        handler.on_response(error, session_id)
    assert firsts == ["far behind", "appended to"] * 2


def test_a_session_that_the_broker_does_not_know_is_begun_again() -> None:
    handler = handler_of("a")
    exchange(handler, cache_of(), {})
    restarted = cache_of()
    assert exchange(handler, restarted, {})[1] == {}
    request, asked, _ = exchange(handler, restarted, {})
    assert (request.session_id, request.epoch, asked) == (NO_SESSION, INITIAL_EPOCH, {"a": 0})


def test_a_lost_response_leads_to_a_full_request_that_closes_the_session() -> None:
    handler, cache = handler_of("a"), cache_of()
    exchange(handler, cache, {})
    cache.context(handler.next_request(), from_follower=True, now_ms=0)
    handler.on_failure()
    request, asked, _ = exchange(handler, cache, {})
    assert (request.session_id, request.epoch, asked, len(cache)) == (1, INITIAL_EPOCH, {"a": 0}, 1)


def test_a_repeated_request_is_refused() -> None:
    handler, cache = handler_of("a"), cache_of()
    exchange(handler, cache, {})
    request = handler.next_request()
    first = cache.context(request, from_follower=True, now_ms=0)
    second = cache.context(request, from_follower=True, now_ms=0)
    assert second.error is ErrorCode.invalid_fetch_session_epoch
    assert first.response({})[0] is ErrorCode.none


def test_a_response_that_another_request_has_overtaken_is_not_sent() -> None:
    handler, cache = handler_of("a"), cache_of()
    exchange(handler, cache, {})
    slow = cache.context(handler.next_request(), from_follower=True, now_ms=0)
    cache.context(FetchSessionRequest(1, 2, {}), from_follower=True, now_ms=0)
    assert slow.response({"a": ReplicaFetchData()}) == (ErrorCode.invalid_fetch_session_epoch, NO_SESSION, {})


def test_a_session_without_partitions_ends_and_a_final_request_opens_none() -> None:
    handler, cache = handler_of("a"), cache_of()
    exchange(handler, cache, {})
    handler.forget("a")
    exchange(handler, cache, {})
    assert len(cache) == 0
    cache.context(FetchSessionRequest(NO_SESSION, FINAL_EPOCH, {"a": 0}), from_follower=True, now_ms=0)
    assert len(cache) == 0


def opens(cache: FetchSessionCache[str, int], partitions: int, *, follower: bool, now: float) -> bool:
    request = FetchSessionRequest(NO_SESSION, INITIAL_EPOCH, {str(number): 0 for number in range(partitions)})
    context = cache.context(request, from_follower=follower, now_ms=now)
    return context.response({})[1] != NO_SESSION


def test_room_is_made_for_followers_and_for_larger_sessions() -> None:
    cache = cache_of(max_sessions=2)
    assert opens(cache, 5, follower=False, now=0)
    assert opens(cache, 5, follower=False, now=0)
    assert not opens(cache, 50, follower=False, now=10), "none is old enough"
    assert opens(cache, 1, follower=True, now=10)
    assert opens(cache, 1, follower=True, now=10)
    assert not opens(cache, 50, follower=True, now=20), "a follower's session gives way to no other so soon"
    assert opens(cache, 1, follower=False, now=5_000), "both were not used for long"
    assert len(cache) == 2
    assert not opens(cache_of(max_sessions=0), 1, follower=True, now=0)


def test_epochs_wrap() -> None:
    assert [next_epoch(epoch) for epoch in (INITIAL_EPOCH, 1, 2**31 - 1, FINAL_EPOCH)] == [1, 2, 1, FINAL_EPOCH]


@pytest.mark.parametrize("seed", range(3))
def test_both_ends_agree_whatever_is_lost(seed: int) -> None:
    random = Random(seed)
    handler, cache = handler_of(), cache_of(max_sessions=2)
    wanted: dict[str, int] = {}
    for _ in range(300):
        partition = random.choice("abcdef")
        if random.random() < 0.6:
            wanted[partition] = random.randrange(100)
            handler.want(partition, wanted[partition])
        elif wanted.pop(partition, None) is not None:
            handler.forget(partition)
        request = handler.next_request()
        if random.random() < 0.2:
            handler.on_failure()
            continue
        context = cache.context(request, from_follower=True, now_ms=0)
        assert context.error is not ErrorCode.none or dict(context) == wanted
        if random.random() < 0.2:
            handler.on_failure()
            continue
        error, session_id, _ = context.response({key: ReplicaFetchData() for key, _ in context})
        handler.on_response(error, session_id)


def test_a_session_is_found_by_the_kind_of_client_that_opened_it() -> None:
    cache = cache_of()
    opened = cache.context(FetchSessionRequest(0, 0, {"a": 0}), from_follower=True, now_ms=0).session_id
    guessed = cache.context(FetchSessionRequest(opened, 1, {}), from_follower=False, now_ms=0)
    assert guessed.error is ErrorCode.fetch_session_id_not_found
    cache.context(FetchSessionRequest(opened, -1, {}), from_follower=False, now_ms=0)
    assert opened in cache, "nor can a consumer end it"


def test_the_partitions_of_all_consumers_sessions_are_bounded() -> None:
    ids = count(1)
    cache: FetchSessionCache[str, int] = FetchSessionCache(10, 1_000, lambda: next(ids), most_consumed=5)

    def session(epoch: int, wanted: str, session_id: int = 0, forgotten: str = "") -> tuple[ErrorCode, int]:
        request = FetchSessionRequest(session_id, epoch, dict.fromkeys(wanted, 0), tuple(forgotten))
        context = cache.context(request, from_follower=False, now_ms=0)
        return context.error, context.session_id

    none, ended = ErrorCode.none, ErrorCode.fetch_session_id_not_found
    assert session(0, "abc") == (none, 1)
    assert session(0, "def") == (none, 0), "served, without a session"
    assert session(0, "de") == (none, 2)
    assert session(1, "f", 1, forgotten="a") == (none, 1)
    assert session(1, "f", 2) == (ended, 0), "it has grown beyond the bound"
    assert session(0, "de") == (none, 3)
    assert session(-1, "", 1) == (none, 0)
    assert session(0, "abc") == (none, 4), "what an ended session had is free again"
    assert opens(cache, 9, follower=True, now=0), "followers are not counted"


def test_a_partition_counts_by_its_weight() -> None:
    """Names of topics that do not exist may be of 32 KB: 100,000 of them in a session would take 3 GB."""
    cache: FetchSessionCache[str, int] = FetchSessionCache(10, 1_000, lambda: 1, most_consumed=9, weight=len)

    def session(epoch: int, *wanted: str, forgotten: tuple[str, ...] = ()) -> ErrorCode:
        request = FetchSessionRequest(epoch and 1, epoch, dict.fromkeys(wanted, 0), forgotten)
        return cache.context(request, from_follower=False, now_ms=0).error

    session(0, "a", "b" * 9)
    assert len(cache) == 0
    session(0, "a", "b" * 8)
    assert len(cache) == 1
    assert session(1, "c" * 8, forgotten=("b" * 8,)) is ErrorCode.none
    assert session(2, "dd") is ErrorCode.fetch_session_id_not_found
    session(0, "e" * 9)
    assert len(cache) == 1
    assert session_weight(("n" * 249, 0)) == session_weight((bytes(16), 0)) == 1
    assert session_weight(("n" * 32_000, 0)) > 100
