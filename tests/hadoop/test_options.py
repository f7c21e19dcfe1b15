"""The source's options: what is right is taken, what is wrong is one line."""

from __future__ import annotations

import pytest

from klamm.core.client.cluster_client import EARLIEST, LATEST
from klamm.core.errors import ConfigError
from klamm.core.records.partition import TopicPartition
from klamm.hadoop.options import Reading, SourceOptions, parse_options

GIVEN = {"kafka.bootstrap.servers": "h:1", "subscribe": "a, b"}


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    options = parse_options(GIVEN)
    assert (options.bootstrap, options.topics, options.assigned) == ("h:1", ("a", "b"), ())
    assert (options.starting, options.ending) == (EARLIEST, LATEST)
    assert options.fail_on_data_loss
    assert not options.headers
    assert options.poll_timeout_s == 120


def test_names_are_not_case_sensitive_and_every_option_is_taken() -> None:
    options = parse_options(
        {
            "BOOTSTRAP.servers": "h:1",
            "ASSIGN": '{"a":[0,2]}',
            "startingoffsets": '{"a":{"0":5,"2":-2}}',
            "endingOffsets": '{"a":{"0":-1,"2":9}}',
            "minPartitions": "4",
            "maxRecordsPerPartition": "10",
            "maxOffsetsPerTrigger": "7",
            "failOnDataLoss": "FALSE",
            "includeHeaders": "true",
            "kafkaConsumer.pollTimeoutMs": "1500",
            "klamm.plugins": "x.y",
        }
    )
    first, second = TopicPartition("a", 0), TopicPartition("a", 2)
    assert options.assigned == (first, second)
    assert options.starting == {first: 5, second: EARLIEST}
    assert options.ending == {first: LATEST, second: 9}
    assert (options.min_tasks, options.max_offsets_per_task, options.limit) == (4, 10, 7)
    assert (options.fail_on_data_loss, options.headers, options.poll_timeout_s) == (False, True, 1.5)
    assert options.plugins == ("x.y",)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"subscribe": "a"}, "needs the option kafka.bootstrap.servers"),
        ({"kafka.bootstrap.servers": "h:1"}, "either subscribe"),
        ({**GIVEN, "assign": "{}"}, "either subscribe"),
        ({**GIVEN, "subscribe": " , "}, "names no topic"),
        ({**GIVEN, "subscribed": "x"}, "unknown option 'subscribed'; did you mean 'subscribe'"),
        ({**GIVEN, "zzz": "x"}, "there are: kafka.bootstrap.servers"),
        ({**GIVEN, "minPartitions": "0"}, "minPartitions: expected a whole number from 1, got '0'"),
        ({**GIVEN, "minPartitions": "many"}, "got 'many'"),
        ({**GIVEN, "failOnDataLoss": "no"}, "expected true or false, got 'no'"),
        ({**GIVEN, "startingOffsets": "latest"}, "startingOffsets cannot be 'latest' in a batch"),
        ({**GIVEN, "endingOffsets": "earliest"}, "endingOffsets cannot be 'earliest' in a batch"),
        ({**GIVEN, "startingOffsets": "5"}, "expected a JSON object"),
        ({**GIVEN, "startingOffsets": "{"}, "startingOffsets is not JSON"),
        ({**GIVEN, "startingOffsets": '{"a":5}'}, "expected"),
        ({**GIVEN, "startingOffsets": '{"a":{"0":-3}}'}, "a-0: -3 is no offset"),
        ({**GIVEN, "startingOffsets": '{"a":{"x":3}}'}, "a-x: 3 is no offset"),
        ({**GIVEN, "subscribePattern": "a.*"}, "either subscribe"),
        (
            {"kafka.bootstrap.servers": "h:1", "subscribePattern": "("},
            "subscribePattern '(' is not a regular expression",
        ),
        ({**GIVEN, "startingTimestamp": "soon"}, "startingTimestamp: expected milliseconds since 1970, got 'soon'"),
        ({**GIVEN, "endingOffsetsByTimestamp": '{"a":{"0":-1}}'}, "a-0: -1 is no time in milliseconds since 1970"),
        ({**GIVEN, "startingOffsetsByTimestampStrategy": "none"}, "expected error or latest, got 'none'"),
        ({**GIVEN, "minOffsetsPerTrigger": "1"}, "minOffsetsPerTrigger is not an option of a batch"),
        ({**GIVEN, "maxTriggerDelay": "1m"}, "maxTriggerDelay is not an option of a batch"),
        ({"kafka.bootstrap.servers": "h:1", "assign": '{"a":"0"}'}, "assign: expected partitions"),
        ({"kafka.bootstrap.servers": "h:1", "assign": "{}"}, "assign names no partition"),
    ],
)
def test_what_is_wrong_is_one_line(given: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options(given)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def stream(**more: str) -> SourceOptions:
    return parse_options({**GIVEN, **more}, Reading.STREAM)


def test_a_stream_begins_at_the_end_and_has_options_of_its_own() -> None:
    options = stream()
    assert (options.starting, options.limit, options.least, options.max_delay_s) == (LATEST, None, None, 900.0)
    options = stream(minOffsetsPerTrigger="3", maxOffsetsPerTrigger="9", maxTriggerDelay="30s", groupIdPrefix="team")
    assert (options.limit, options.least, options.max_delay_s, options.client_id) == (9, 3, 30.0, "team")
    assert stream(startingOffsets="earliest").starting == EARLIEST


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets is not an option of a stream"),
        ({"endingTimestamp": "5"}, "endingTimestamp is not an option of a stream"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay: expected a time such as 30s or 15m, got 'soon'"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "minOffsetsPerTrigger 5 is more than"),
    ],
)
def test_what_is_wrong_with_a_stream_is_one_line(given: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        stream(**given)


def test_times_are_for_all_partitions_or_for_each() -> None:
    by_partition = parse_options({**GIVEN, "startingOffsetsByTimestamp": '{"a":{"1":7}}', "endingTimestamp": "9"})
    assert by_partition.starting_times == {TopicPartition("a", 1): 7}
    assert by_partition.ending_times == 9
    assert parse_options({**GIVEN, "startingTimestamp": "5"}).starting_times == 5
    assert not by_partition.late_is_latest
