"""Every configuration key of Kafka is obeyed, without effect, or refused with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from klamm.core.config.describe import describe_broker, describe_topic
from klamm.core.config.dynamic import DEFINITIONS, overlaid
from klamm.core.config.kafka_keys import BROKER_KEYS, ELSEWHERE, ONLY_KAFKA_3, TOPIC_KEYS, KafkaKey, accepted, refusal
from klamm.core.config.section import ConfigType
from klamm.core.config.sections.broker import BrokerConfig
from klamm.core.config.sections.topic import TOPIC_DEFINITIONS
from klamm.core.config.settings import load_settings
from klamm.core.errors import ConfigError

OTHERS = {name: key for name, key in BROKER_KEYS.items() if name not in DEFINITIONS}


def test_the_table_has_what_kafka_44_has() -> None:
    """The numbers that its classes print: `python bench/kafka_keys.py`."""
    assert (len(BROKER_KEYS), len(TOPIC_KEYS)) == (382, 37)
    assert set(TOPIC_KEYS) <= set(TOPIC_DEFINITIONS)
    assert not ONLY_KAFKA_3 & set(BROKER_KEYS)


@pytest.mark.parametrize("keys", [BROKER_KEYS, TOPIC_KEYS], ids=["broker", "topic"])
def test_every_default_is_valid(keys: dict[str, KafkaKey]) -> None:
    for key in keys.values():
        if key.default is not None:
            assert key.checked(key.default) == key.default


def test_a_file_with_every_default_of_kafka_is_accepted_and_shown(tmp_path: Path) -> None:
    """What Kafka itself would do without the file asks for nothing, refused keys included."""
    defaults = {n: key.default for n, key in OTHERS.items() if key.default is not None and n not in ELSEWHERE}
    broker = load_settings({"broker": {"log.dirs": str(tmp_path), **defaults}}).broker
    assert broker.without_effect == defaults
    shown = {entry.name: entry for entry in describe_broker(broker)}
    assert {name: shown[name].value for name in defaults} == {
        name: None if OTHERS[name].type is ConfigType.PASSWORD else value for name, value in defaults.items()
    }


def test_secrets_and_classes_are_refused() -> None:
    """A key that is accepted without effect must not promise protection, nor code that runs."""
    for key in OTHERS.values():
        if key.type in (ConfigType.PASSWORD, ConfigType.CLASS) or key.name.endswith((".class.name", ".location")):
            assert refusal(key.name), key.name


def test_a_refused_key_says_why_and_a_wrong_value_what_is_right() -> None:
    with pytest.raises(ValueError, match="Klamm has no TLS yet"):
        accepted(BROKER_KEYS["ssl.keystore.location"], "/k")
    with pytest.raises(ConfigError) as caught:
        load_settings({"broker": {"process.roles": "broker", "num.replica.fetchers": "many", "quota.window.num": 0}})
    lines = str(caught.value).splitlines()
    assert [line.partition("broker.")[2] for line in lines] == [
        "process.roles: Klamm has no KRaft; the section coordination names what takes its place",
        "num.replica.fetchers: should be a whole number, got 'many'",
        "quota.window.num: should be >= 1, got 0",
    ]


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("compression.gzip.level", "9", "0"),
        ("group.consumer.migration.policy", "upgrade", "sideways"),
        ("log.preallocate", "TRUE", "yes"),
        ("log.cleaner.io.buffer.load.factor", "0.5", "half"),
        ("sasl.login.refresh.buffer.seconds", "32767", "32768"),
        ("background.threads", 3, None),
        ("background.threads", "10", "1_0"),
        ("background.threads", " 10", "１０"),
        ("log.cleaner.io.buffer.load.factor", "0.9", "0.9_0"),
    ],
)
def test_values_are_checked_as_kafka_checks_them(name: str, right: object, wrong: object) -> None:
    assert accepted(BROKER_KEYS[name], right) == str(right).strip().lower()
    with pytest.raises(ValueError, match="should be"):
        accepted(BROKER_KEYS[name], wrong)


def test_the_cluster_goes_before_the_file() -> None:
    file = overlaid(BrokerConfig(), {"background.threads": "3"})
    over = overlaid(file, {"background.threads": "4"}, {"num.replica.fetchers": "2"})
    assert (over.without_effect, file.without_effect) == (
        {"background.threads": "4", "num.replica.fetchers": "2"},
        {"background.threads": "3"},
    )


def test_an_empty_cleanup_policy_cleans_nothing() -> None:
    """Kafka 4.2: neither delete nor compact."""
    for empty in ("", [], "  "):
        settings = load_settings({"topics": {"t": {"config": {"cleanup.policy": empty}}}})
        config = settings.topics["t"].topic_config()
        assert (config.cleanup_policy, config.deletes, config.compacts) == ("", False, False)
    (policy,) = [
        each for each in describe_topic({"cleanup.policy": ""}, BrokerConfig()) if each.name == "cleanup.policy"
    ]
    assert policy.value == ""
    with pytest.raises(ConfigError, match="should be delete, compact, compact,delete or empty"):
        load_settings({"topics": {"t": {"config": {"cleanup.policy": [None, "shred"]}}}})
