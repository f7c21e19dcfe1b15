"""The source's options: what is right is taken, what is wrong is one line."""

from __future__ import annotations

import pytest

from klamm.core.client.cluster_client import EARLIEST, LATEST
from klamm.core.errors import ConfigError
from klamm.core.records.partition import TopicPartition
from klamm.hadoop.options import parse_options

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
        ({**GIVEN, "startingOffsets": "{"}, "startingOffsets is no JSON"),
        ({**GIVEN, "startingOffsets": '{"a":5}'}, "expected"),
        ({**GIVEN, "startingOffsets": '{"a":{"0":-3}}'}, "a-0: -3 is no offset"),
        ({**GIVEN, "startingOffsets": '{"a":{"x":3}}'}, "a-x: 3 is no offset"),
        ({"kafka.bootstrap.servers": "h:1", "assign": '{"a":"0"}'}, "assign: expected partitions"),
        ({"kafka.bootstrap.servers": "h:1", "assign": "{}"}, "assign names no partition"),
    ],
)
def test_what_is_wrong_is_one_line(given: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options(given)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
