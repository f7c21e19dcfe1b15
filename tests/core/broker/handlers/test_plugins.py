"""The effect of plugins on Produce and Fetch: third-party codecs (design, section 5) and topic validators."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import klamm
from klamm.core.config.settings import Settings
from klamm.core.errors import ErrorCode, KlammError
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.encode import encode_batch
from klamm.core.records.header import iter_headers
from klammtest.broker import RunningBroker, running_broker
from klammtest.plugins.third_party import Backwards
from klammtest.requests import alter_topic, batch, create_topic, fetch, new_topic, produce
from klammtest.waiting import eventually
from klammtest.wire import WireClient

NOW_MS = 1_700_000_000_000
GZIP = Settings().codec_table().by_name("gzip")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(
        tmp_path_factory.mktemp("broker"),
        broker={"topic.validators": [{"plugin": "polite"}], "decompressed.max.bytes": 100_000},
        plugins={"modules": ["klammtest.plugins.third_party"]},
    ) as running:
        yield running
        assert "Traceback" not in running.log()


def introduce(wire: WireClient, version: str) -> None:
    answer = wire.call(ApiKey.API_VERSIONS, 3, client_software_name="test", client_software_version=version)
    assert answer.error_code is ErrorCode.none


def test_a_third_party_codec_is_stored_only_where_the_topic_names_it(wire: WireClient) -> None:
    backwards = batch(b"abc", codec=Backwards())
    assert produce(wire, new_topic(wire), backwards).error_code is ErrorCode.unsupported_compression_type
    named = new_topic(wire, compression_type="backwards")
    assert produce(wire, named, backwards).error_code is ErrorCode.none


def test_it_is_served_only_to_those_who_declare_it(broker: RunningBroker, wire: WireClient) -> None:
    topic = new_topic(wire, compression_type="backwards")
    produce(wire, topic, batch(b"abc", codec=Backwards()))
    assert fetch(wire, topic, 0).error_code is ErrorCode.unsupported_compression_type
    introduce(wire, "1.0-codecs.6")
    assert fetch(wire, topic, 0).error_code is ErrorCode.unsupported_compression_type
    introduce(wire, "1.0-codecs.5.6")
    answer = fetch(wire, topic, 0)
    assert [h.codec_id for _, h in iter_headers(answer.records)] == [5]


def test_what_comes_before_it_is_served_to_all(wire: WireClient) -> None:
    topic = new_topic(wire)
    produce(wire, topic, batch(b"plain"))
    alter_topic(wire, topic, "compression.type", "backwards")
    produce(wire, topic, batch(b"abc", codec=Backwards()))
    first = fetch(wire, topic, 0)
    assert (first.error_code, [h.codec_id for _, h in iter_headers(first.records)]) == (ErrorCode.none, [0])
    assert fetch(wire, topic, 1).error_code is ErrorCode.unsupported_compression_type


def test_an_unknown_codec_id_is_refused(wire: WireClient) -> None:
    class Unknown(Backwards):
        codec_id = 7

    outcome = produce(wire, new_topic(wire), batch(b"abc", codec=Unknown()))
    assert outcome.error_code is ErrorCode.unsupported_compression_type


def test_a_topic_may_name_it_and_then_all_is_stored_in_it(wire: WireClient) -> None:
    introduce(wire, "1-codecs.5")
    topic = new_topic(wire, compression_type="backwards")
    produce(wire, topic, batch(b"abc", codec=GZIP))
    assert [h.codec_id for _, h in iter_headers(fetch(wire, topic, 0).records)] == [5]


@pytest.mark.parametrize("codec", [None, GZIP], ids=["none", "gzip"])
def test_a_validator_refuses_with_its_own_line(wire: WireClient, codec: object) -> None:
    create_topic(wire, "polite-topic")
    outcome = produce(wire, "polite-topic", batch(b"please", b"now", codec=codec))
    assert outcome.error_code is ErrorCode.invalid_record
    assert "record 1 does not say please" in outcome.error_message
    assert produce(wire, "polite-topic", batch(b"please", codec=codec)).error_code is ErrorCode.none
    assert produce(wire, new_topic(wire), batch(b"now", codec=codec)).error_code is ErrorCode.none


def test_a_validator_that_fails_refuses_too(broker: RunningBroker, wire: WireClient) -> None:
    create_topic(wire, "polite-bug")
    outcome = produce(wire, "polite-bug", batch(b"bug"))
    assert outcome.error_code is ErrorCode.invalid_record
    assert "ZeroDivisionError" in outcome.error_message
    line = "polite-bug-0: the validator Polite failed: ZeroDivisionError: a bug in the validator at "
    eventually(lambda: line in broker.log(), "the broker's log has a line about it")


def test_a_producer_s_error_names_the_code_once(broker: RunningBroker, wire: WireClient) -> None:
    create_topic(wire, "polite-once")
    with (
        klamm.Producer({"producer": {"bootstrap.servers": broker.bootstrap}}) as producer,
        pytest.raises(KlammError, match="record 0 does not say please") as caught,
    ):
        producer.send("polite-once", b"now").result(30)
    assert str(caught.value).count("INVALID_RECORD") == 1


def test_a_batch_that_unpacks_to_too_much_is_refused(wire: WireClient) -> None:
    create_topic(wire, "polite-bomb")
    outcome = produce(wire, "polite-bomb", batch(b"please" * 100_000, codec=GZIP))
    assert outcome.error_code is ErrorCode.message_too_large
    assert produce(wire, "polite-bomb", b"x" * 100).error_code is not ErrorCode.none


@pytest.mark.parametrize("opened", [{"cleanup_policy": "compact"}, {"compression_type": "zstd"}])
def test_the_log_opens_no_more_of_a_batch_than_is_configured(wire: WireClient, opened: dict[str, str]) -> None:
    topic = new_topic(wire, **opened)
    fits, grows = (encode_batch([(NOW_MS, b"k", bytes(size), ())], codec=GZIP) for size in (90_000, 110_000))
    assert produce(wire, topic, fits).error_code is ErrorCode.none
    assert produce(wire, topic, grows).error_code is not ErrorCode.none
