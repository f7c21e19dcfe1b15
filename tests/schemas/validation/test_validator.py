"""What the validator accepts and refuses, by a table of schemas in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any, Final, cast
from uuid import UUID

import pytest

from klamm.core.config.sections.topic import TopicConfig
from klamm.core.errors import BrokerError, ErrorCode
from klamm.core.interfaces.validator import TopicValidator
from klamm.core.log.errors import InvalidRecordError
from klamm.core.records.codecs import CodecTable
from klamm.core.records.record import Headers, Record
from klamm.schemas.names import JSON, PROTOBUF
from klamm.schemas.service.topic import shared_topic
from klamm.schemas.store.config import Config
from klamm.schemas.store.records import ConfigRecord, SchemaRecord, SchemaTombstone, SubjectDeletion, encode
from klamm.schemas.store.schema import Reference, SchemaText
from klamm.schemas.store.schema_store import SchemaStore
from klamm.schemas.validation import validator as module
from klamm.schemas.validation.config import SchemaValidatorConfig
from klamm.schemas.validation.validator import SchemaValidator
from klamm.testing.contracts.validator import TopicValidatorContract

STRATEGY: Final = "confluent.value.subject.name.strategy"
ID: Final = {"confluent.value.schema.validation": "true"}
FULL: Final = {"klamm.value.schema.validation": "full"}
LONG: Final = '"long"'
ORDER: Final = json.dumps({"type": "record", "name": "shop.Order", "fields": [{"name": "id", "type": "long"}]})
PROTO: Final = """syntax = "proto3"; package shop;
message Order { int64 id = 1; message Line { string text = 1; } }
message Note { string text = 1; }"""


class Table:
    """A `SchemaTopic` in memory. `behind` is done by the next read of the topic's end."""

    def __init__(self) -> None:
        self._store = SchemaStore()
        self.behind: Callable[[], None] | None = None
        self.unreadable = ""
        self.reads = 0

    @property
    def place(self) -> tuple[int, int]:
        return self._store.generation, self._store.position

    @contextmanager
    def store(self) -> Iterator[SchemaStore]:
        yield self._store

    def start(self) -> None:
        pass

    def problem(self) -> str | None:
        return self.unreadable or None

    def catch_up(self, timeout_s: float | None = None) -> None:
        self.reads += 1
        if self.unreadable:
            raise BrokerError(ErrorCode.request_timed_out, self.unreadable)
        if self.behind is not None:
            self.behind()

    def add(self, *records: Any) -> None:
        for record in records:
            self._store.apply(self._store.position, 0, *encode(record))

    def register(self, subject: str, schema_id: int, text: str = LONG, kind: str = "AVRO", **more: Any) -> SchemaText:
        schema = SchemaText(text, kind, **more)
        version = self._store.next_version(subject)
        self.add(SchemaRecord(subject, version, schema_id, schema))
        return schema


@pytest.fixture
def table() -> Table:
    return Table()


def made(table: Table, topic: str, config: Mapping[str, str]) -> SchemaValidator:
    validator = SchemaValidator(SchemaValidatorConfig())
    validator.start(cast(Any, SimpleNamespace(shared=lambda *_: table)))
    assert validator.applies_to(topic, config)
    return validator


def prefixed(schema_id: int, payload: bytes = b"\x02") -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big", signed=True) + payload


def record(value: bytes | None, headers: Headers = (), key: bytes | None = None) -> Record:
    return Record(0, 1, key, value, headers)


def fault(validator: SchemaValidator, topic: str, one: Record) -> str:
    """Returns what is wrong with a record; nothing if it is accepted."""
    try:
        validator.validate(topic, 0, [one])
    except InvalidRecordError as error:
        return str(error).removeprefix("1 of 1 records refused: record 0: ")
    return ""


class TestContract(TopicValidatorContract):
    topic, config = "orders", ID
    accepted = (prefixed(1), prefixed(1, b""), None)
    refused = (b"\0", b"plain", prefixed(2), prefixed(-1))

    @pytest.fixture
    def validator(self, table: Table) -> TopicValidator:
        table.register("orders-value", 1)
        return made(table, "orders", ID)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (prefixed(1), ""),
        (None, ""),
        (b"", "value: the payload is empty: no schema id"),
        (b"\0\0\0\1", "value: the payload has 4 bytes, too few for a schema id (5)"),
        (b"\1" + bytes(15), "value: the payload has 16 bytes, too few for a schema id (17)"),
        (b"\xc3\1" + bytes(8), "value: the payload begins with 0xc3, not with 0x00 and a schema id"),
        (prefixed(9), "value: schema id 9 is not registered"),
        (prefixed(0), "value: schema id 0 is not registered"),
        (prefixed(2), "value: schema id 2 is not registered under the subject t-value (but under other-value)"),
        (prefixed(3), "value: schema id 3 is withdrawn from the subject t-value"),
        (b"\1" + bytes(16), f"value: schema GUID {UUID(int=0)} is not registered"),
    ],
)
def test_a_value_must_name_a_live_schema_of_its_subject(table: Table, value: bytes | None, words: str) -> None:
    table.register("t-value", 3, '"string"')
    table.add(SubjectDeletion("t-value", 1))
    table.register("t-value", 1)
    table.register("other-value", 2, '"bytes"')
    assert fault(made(table, "t", ID), "t", record(value)) == words


def test_what_is_withdrawn_or_registered_again_counts_at_once(table: Table) -> None:
    table.register("t-value", 1)
    validator = made(table, "t", ID)
    assert fault(validator, "t", record(prefixed(1))) == ""
    table.add(SubjectDeletion("t-value", 1))
    assert "is withdrawn" in fault(validator, "t", record(prefixed(1)))
    table.add(SchemaTombstone("t-value", 1))
    assert "is not registered" in fault(validator, "t", record(prefixed(1)))
    table.register("t-value", 1)
    assert fault(validator, "t", record(prefixed(1))) == ""


def test_an_alias_and_a_second_subject_of_the_id_count(table: Table) -> None:
    table.register("shared", 1)
    table.register("t-value", 1)
    table.add(ConfigRecord("u-value", Config(alias="shared")))
    assert fault(made(table, "t", ID), "t", record(prefixed(1))) == ""
    assert fault(made(table, "u", ID), "u", record(prefixed(1))) == ""


def test_keys_have_a_rule_of_their_own(table: Table) -> None:
    table.register("t-key", 1)
    table.register("t-value", 2, '"bytes"')
    validator = made(table, "t", {"klamm.key.schema.validation": "full", "confluent.value.schema.validation": "true"})
    assert fault(validator, "t", record(prefixed(2), (), prefixed(1))) == ""
    assert fault(validator, "t", record(None, (), None)) == ""
    both = [record(b"v", (), b"k"), record(prefixed(2), (), prefixed(1, b"no long"))]
    with pytest.raises(InvalidRecordError) as caught:
        validator.validate("t", 0, [both[0], both[1]._replace(offset=1)])
    assert [(error.place, error.message.partition(":")[0]) for error in caught.value.record_errors] == [
        (0, "key"),
        (0, "value"),
        (1, "key"),
    ]


@pytest.mark.parametrize(
    ("strategy", "subject"), [("RecordNameStrategy", "shop.{}"), ("TopicRecordNameStrategy", "t-shop.{}")]
)
def test_the_subject_may_be_named_after_the_record(table: Table, strategy: str, subject: str) -> None:
    config = {**ID, STRATEGY: f"io.confluent.kafka.serializers.subject.{strategy}"}
    table.register(subject.format("Order"), 1, ORDER)
    table.register("t-value", 2, ORDER.replace("Order", "Other"))
    table.register(subject.format("Note"), 3, PROTO, PROTOBUF)
    table.register("t-value", 4)
    table.register("shop.Titled", 5, '{"title": "shop.Titled"}', JSON)
    table.register("t-shop.Titled", 5, '{"title": "shop.Titled"}', JSON)
    validator = made(table, "t", config)
    assert fault(validator, "t", record(prefixed(1, b"no Avro"))) == ""
    assert f"not registered under the subject {subject.format('Other')}" in fault(validator, "t", record(prefixed(2)))
    assert fault(validator, "t", record(prefixed(3, b"\2\2..."))) == "", "the second message"
    assert f"under the subject {subject.format('Order')}" in fault(validator, "t", record(prefixed(3, b"\0...")))
    assert "is not a named record" in fault(validator, "t", record(prefixed(4)))
    assert fault(validator, "t", record(prefixed(5))) == ""
    table.register(subject.format("Other"), 2, ORDER.replace("Order", "Other"))
    assert fault(validator, "t", record(prefixed(2))) == ""


def test_a_header_names_the_schema_by_its_guid_and_counts_before_the_payload(table: Table) -> None:
    guid = UUID(table.register("t-value", 1).guid()).bytes
    other = UUID(table.register("other-value", 2, '"bytes"').guid()).bytes
    validator = made(table, "t", FULL)

    def headed(header: bytes, value: bytes) -> str:
        return fault(validator, "t", record(value, (("trace", b"1"), ("__value_schema_id", header))))

    assert headed(b"\1" + guid, b"\x02") == ""
    assert headed(prefixed(1, b""), b"\x02") == "", "an id may be there, too"
    assert headed(b"\1" + guid, prefixed(1)) == "value: 5 bytes left over after the payload"
    assert "but under other-value" in headed(b"\1" + other, prefixed(1))
    assert headed(b"", prefixed(1)) == "value: the header is empty: no schema id"
    assert headed(b"\1" + guid[:15], b"\x02") == "value: the header has 16 bytes, too few for a schema id (17)"
    assert fault(validator, "t", record(b"\1" + guid + b"\x02")) == "", "a GUID before the payload"
    assert fault(validator, "t", record(prefixed(1), (("__key_schema_id", b"\1"),))) == "", "that is the key's"


def test_a_protobuf_value_is_the_message_that_its_indexes_name(table: Table) -> None:
    table.register("t-value", 1, PROTO, PROTOBUF)
    validator = made(table, "t", FULL)
    order, text = b"\x08\x07", b"\x0a\x02hi"
    cases = {
        b"\0" + order: "", b"\2\0" + order: "", b"\2\2" + text: "", b"\4\0\0" + text: "",
        b"\0" + text: "", b"\0\x08": "value: the payload does not fit its schema: ",
        b"\2\4" + text: "value: the schema has no message at 2", b"\2\1" + text: "value: the schema has no message at ",
        b"": "value: the Protobuf message indexes are cut off",
        b"\x80" * 6: "value: a Protobuf message index has more",
        b"\xff\xff\x03": "value: the Protobuf message indexes claim to be -",
        b"\2\2\x0a\x02\xff\xff": "value: the payload does not fit its schema: ",
    }  # fmt: skip
    found = {payload: fault(validator, "t", record(prefixed(1, payload))) for payload in cases}
    for payload, words in cases.items():
        assert found[payload].startswith(words)
        assert bool(found[payload]) == bool(words)
    guid = UUID(table.register("t-value", 2, PROTO + " // 2", PROTOBUF).guid()).bytes
    headed = (("__value_schema_id", b"\1" + guid + b"\2\2"),)
    assert fault(validator, "t", record(text, headed)) == ""
    assert "has no message at 2" in fault(
        validator, "t", record(text, (("__value_schema_id", b"\1" + guid + b"\2\4"),))
    )


def test_references_are_part_of_the_schema(table: Table) -> None:
    table.register("money", 1, '{"type": "fixed", "name": "shop.Money", "size": 4}')
    bill = '{"type": "record", "name": "Bill", "fields": [{"name": "sum", "type": "shop.Money"}]}'
    table.register("t-value", 2, bill, references=(Reference("shop.Money", "money", 1),))
    number = '{"title": "Bill", "type": "object", "properties": {"sum": {"$ref": "money.json"}}}'
    table.register("money-json", 3, '{"type": "integer"}', JSON)
    table.register("t-value", 4, number, JSON, references=(Reference("money.json", "money-json", 1),))
    table.register("t-value", 5, ORDER.replace("long", "shop.Missing"))
    validator = made(table, "t", FULL)
    assert fault(validator, "t", record(prefixed(2, b"1234"))) == ""
    assert "truncated" in fault(validator, "t", record(prefixed(2, b"123")))
    assert fault(validator, "t", record(prefixed(4, b'{"sum": 1}'))) == ""
    assert "#/sum: " in fault(validator, "t", record(prefixed(4, b'{"sum": "1"}')))
    assert fault(validator, "t", record(prefixed(5))).startswith("value: schema 5 (t-value, version 3): ")


def test_what_was_just_registered_is_found_at_the_end_of_the_topic(table: Table) -> None:
    validator = made(table, "t", ID)
    table.behind = lambda: table._store.latest("t-value") or table.register("t-value", 1)  # type: ignore[assignment]
    assert fault(validator, "t", record(prefixed(1))) == ""
    assert fault(validator, "t", record(prefixed(1))) == ""
    assert table.reads == 1
    assert "is not registered" in fault(validator, "t", record(prefixed(2)))
    assert table.reads == 2


def test_while_the_topic_cannot_be_read_nothing_unknown_is_accepted_or_given_up(table: Table) -> None:
    table.register("t-value", 1)
    validator = made(table, "t", ID)
    table.unreadable = "planted"
    assert fault(validator, "t", record(prefixed(1))) == "", "the table has it"
    for _ in range(3):
        with pytest.raises(BrokerError) as caught:
            validator.validate("t", 0, [record(prefixed(1)), record(prefixed(2))])
        assert caught.value.code is ErrorCode.not_enough_replicas
        assert "the topic of schemas cannot be read: " in str(caught.value)
    assert table.reads == 1, "a batch does not wait for a topic that was not readable a moment ago"
    assert "begins with 0x70" in fault(validator, "t", record(b"plain")), "no schema would make it right"
    with pytest.raises(InvalidRecordError, match="2 of 2 records refused"):
        validator.validate("t", 0, [record(b"plain"), record(prefixed(2))])
    table.unreadable = ""
    validator._failed_at -= module.PAUSE_S
    table.register("t-value", 2, '"bytes"')
    assert fault(validator, "t", record(prefixed(2))) == ""


def test_it_applies_only_where_the_topic_asks_for_it() -> None:
    validator = SchemaValidator(SchemaValidatorConfig())
    assert not validator.applies_to("t", TopicConfig().to_strings())
    assert validator.applies_to("t", ID)
    assert not validator.applies_to("t", TopicConfig().to_strings())
    validator.validate("t", 0, [record(b"plain")])  # of a batch that came just before
    assert not validator.applies_to("_schemas", ID), "the schemas themselves name none"


def test_a_broker_without_a_reachable_topic_of_schemas_refuses_for_now() -> None:
    made_once: dict[str, Any] = {}

    def shared(name: str, make: Callable[[], Any]) -> Any:
        if name not in made_once:
            made_once[name] = make()
        return made_once[name]

    context = SimpleNamespace(
        bootstrap_servers="127.0.0.1:1", codecs=CodecTable(), shared=shared, coordination=SimpleNamespace()
    )
    validator = SchemaValidator(SchemaValidatorConfig())
    validator.start(cast(Any, context))
    validator.applies_to("t", ID)
    with closing(shared_topic(cast(Any, context), "_schemas")):
        with pytest.raises(BrokerError, match="the topic of schemas cannot be read: ") as caught:
            validator.validate("t", 0, [record(prefixed(1))])
        assert caught.value.code is ErrorCode.not_enough_replicas
    assert list(made_once) == ["schemas:_schemas"]


def test_a_known_id_passes_at_once_until_the_table_changes(table: Table) -> None:
    table.register("t-value", 1)
    validator, known = made(table, "t", ID), record(prefixed(1))
    assert not validator.passes("t", [known]), "it was never looked up"
    assert fault(validator, "t", known) == ""
    assert validator.passes("t", [known, record(None)])
    assert not validator.passes("t", [known, record(prefixed(2))])
    assert not validator.passes("t", [record(b"")])
    assert not validator.passes("t", [record(prefixed(1), (("__value_schema_id", b""),))])
    table.add(SubjectDeletion("t-value", 1))
    assert not validator.passes("t", [known])
    full = made(table, "u", FULL)
    table.register("u-value", 2)
    assert fault(full, "u", record(prefixed(2))) == ""
    assert not full.passes("u", [record(prefixed(2))]), "the value is decoded on a thread"
