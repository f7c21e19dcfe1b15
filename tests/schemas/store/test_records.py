"""Records of the topic of schemas: the bytes that Confluent's registry writes, and what others may have written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from klamm.core.errors import SchemaError
from klamm.schemas.compatibility import Compatibility
from klamm.schemas.store.config import CompatibilityPolicy, Config, Mode
from klamm.schemas.store.records import (
    ConfigRecord,
    ContextRecord,
    ModeRecord,
    Noop,
    Record,
    RecordPlace,
    SchemaRecord,
    SchemaTombstone,
    StrayRecordError,
    SubjectClearing,
    SubjectDeletion,
    decode,
    encode,
)
from klamm.schemas.store.schema import Metadata, Reference, Rule, RuleSet, SchemaText

METADATA = Metadata((("**.ssn", ("PII", "é")),), (("application.version", "1"), ("owner", "ann")), ("owner",))
RULES = RuleSet(domain_rules=(Rule("r", kind="CONDITION", mode="WRITE", type="CEL", expr="size(m.x) > 0"),))
FULL = SchemaText('{"a":"\\u001f/é"}', "JSON", (Reference("n.R", ":.c:s", 3),), METADATA, RULES)

WRITTEN: list[tuple[Record, str, str | None]] = [
    (
        SchemaRecord("t-value", 1, 7, SchemaText('"int"')),
        '{"keytype":"SCHEMA","subject":"t-value","version":1,"magic":1}',
        '{"subject":"t-value","version":1,"id":7,"schema":"\\"int\\"","deleted":false}',
    ),
    (
        SchemaRecord("é\x1f", 2, 8, FULL, deleted=True),
        '{"keytype":"SCHEMA","subject":"é\\u001F","version":2,"magic":1}',
        '{"subject":"é\\u001F","version":2,"id":8,"schemaType":"JSON","references":[{"name":"n.R","subject":":.c:s",'
        '"version":3}],"metadata":{"tags":{"**.ssn":["PII","é"]},"properties":{"application.version":"1",'
        '"owner":"ann"},"sensitive":["owner"]},"ruleSet":{"domainRules":[{"name":"r","kind":"CONDITION",'
        '"mode":"WRITE","type":"CEL","expr":"size(m.x) > 0","disabled":false}]},'
        '"schema":"{\\"a\\":\\"\\\\u001f/é\\"}","deleted":true}',
    ),
    (SchemaTombstone("t", 3), '{"keytype":"SCHEMA","subject":"t","version":3,"magic":1}', None),
    (
        SubjectDeletion("t", 3),
        '{"keytype":"DELETE_SUBJECT","subject":"t","magic":0}',
        '{"subject":"t","version":3}',
    ),
    (SubjectClearing("t"), '{"keytype":"CLEAR_SUBJECT","subject":"t","magic":0}', '{"subject":"t"}'),
    (
        ConfigRecord(None, Config(compatibility_level=Compatibility.FULL)),
        '{"keytype":"CONFIG","magic":0}',
        '{"compatibilityLevel":"FULL"}',
    ),
    (
        ConfigRecord("t", Config(alias="u", normalize=True, compatibility_policy=CompatibilityPolicy.LENIENT,
                                 default_metadata=METADATA, override_rule_set=RULES)),
        '{"keytype":"CONFIG","subject":"t","magic":0}',
        '{"subject":"t","alias":"u","normalize":true,"compatibilityPolicy":"LENIENT","defaultMetadata":{"tags":'
        '{"**.ssn":["PII","é"]},"properties":{"application.version":"1","owner":"ann"},"sensitive":["owner"]},'
        '"overrideRuleSet":{"domainRules":[{"name":"r","kind":"CONDITION","mode":"WRITE","type":"CEL",'
        '"expr":"size(m.x) > 0","disabled":false}]}}',
    ),
    (ConfigRecord("t", None), '{"keytype":"CONFIG","subject":"t","magic":0}', None),
    (
        ModeRecord(":.c:", Mode.IMPORT),
        '{"keytype":"MODE","subject":":.c:","magic":0}',
        '{"subject":":.c:","mode":"IMPORT"}',
    ),
    (ModeRecord(None, None), '{"keytype":"MODE","magic":0}', None),
    (
        ContextRecord(".c"),
        '{"keytype":"CONTEXT","tenant":"default","context":".c"}',
        '{"tenant":"default","context":".c"}',
    ),
    (Noop(), '{"keytype":"NOOP","magic":0}', None),
]  # fmt: skip


@pytest.mark.parametrize(("record", "key", "value"), WRITTEN, ids=lambda one: type(one).__name__)
def test_bytes_are_confluents(record: Record, key: str, value: str | None) -> None:
    assert encode(record) == (key.encode(), None if value is None else value.encode())
    assert decode(*encode(record)) == record


def test_other_forms_are_read() -> None:
    redpanda = {"keytype": "SCHEMA", "subject": "t", "version": 1, "magic": 1, "seq": 4, "node": 0}
    value = {"subject": "t", "version": 1, "id": 7, "schema": '"int"', "deleted": False, "md5": "x", "more": {}}
    assert decode(json.dumps(redpanda).encode(), json.dumps(value).encode()) == SchemaRecord(
        "t", 1, 7, SchemaText('"int"')
    )
    for kind, wanted in (("CONFIG", ConfigRecord(None, None)), ("MODE", ModeRecord(None, None))):
        assert decode(json.dumps({"keytype": kind, "subject": None, "magic": 0}).encode(), None) == wanted
    assert decode(b'{"keytype":"NOOP"}', b"") == decode(b'{"keytype":"ASSOC"}', b"{}") == Noop()


KEY = encode(WRITTEN[0][0])[0]
STRAY: list[tuple[bytes | None, bytes | None, str, RecordPlace]] = [
    (None, b"x", "the key is None", RecordPlace()),
    (b"{", b"{", "the key is not JSON", RecordPlace()),
    (b"[1]", b"{}", "not a JSON object", RecordPlace()),
    (b"{}", None, "'keytype' is missing", RecordPlace()),
    (b'{"keytype":"OTHER","subject":"t"}', b"{}", "keytype 'OTHER' is not known", RecordPlace("t")),
    (b'{"keytype":"SCHEMA"}', b'{"id": 1}', "'subject' is missing", RecordPlace()),
    (
        b'{"keytype":"SCHEMA","subject":"t","version":0}',
        b"{}",
        "version is 0, not a number from 1",
        RecordPlace("t", 0),
    ),
    (KEY, b"[" * 100_000, "the value is not JSON", RecordPlace("t-value", 1)),
    (KEY, b"{}", "'subject' is missing", RecordPlace("t-value", 1)),
    (
        KEY,
        b'{"subject":"u","version":1,"id":1,"schema":""}',
        "the value is of 'u', version 1",
        RecordPlace("t-value", 1, 1),
    ),
    (KEY, b'{"subject":"t-value","version":1,"id":Infinity,"schema":""}', "id is inf", RecordPlace("t-value", 1)),
    (
        KEY,
        b'{"subject":"t-value","version":1,"id":2147483648,"schema":""}',
        "to 2\\^31 - 1",
        RecordPlace("t-value", 1, 2**31),
    ),
    (KEY, b'{"subject":"t-value","version":1,"id":-1,"schema":""}', "id is -1", RecordPlace("t-value", 1, -1)),
    (
        KEY,
        b'{"subject":"t-value","version":1,"id":1,"schema":3}',
        "schema is 3, not text",
        RecordPlace("t-value", 1, 1),
    ),
    (
        KEY,
        b'{"subject":"t-value","version":1,"id":1,"schema":"","metadata":{"tags":{"a":3}}}',
        "tags.a is 3, not a list",
        RecordPlace("t-value", 1, 1),
    ),
    (b'{"keytype":"MODE","subject":"t"}', b'{"mode":"FAST"}', "'FAST' is not a valid Mode", RecordPlace("t")),
    (b'{"keytype":"CONFIG"}', b'{"compatibilityLevel":"BEST"}', "'BEST' is not a valid", RecordPlace()),
    (b'{"keytype":"DELETE_SUBJECT","subject":"t"}', b'{"version":"x"}', "version is 'x'", RecordPlace("t")),
]


@pytest.mark.parametrize(("key", "value", "why", "place"), STRAY)
def test_a_stray_record_is_one_line(key: bytes | None, value: bytes | None, why: str, place: RecordPlace) -> None:
    with pytest.raises(StrayRecordError, match=why) as caught:
        decode(key, value)
    assert caught.value.place == place
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_text_that_is_no_utf_8_is_not_written() -> None:
    with pytest.raises(SchemaError, match="cannot be UTF-8"):
        encode(SchemaTombstone("\ud800", 1))


def test_the_guid_is_of_everything_that_a_schema_says() -> None:
    """An MD5 of the parts, in the order of Confluent's `Schema.updateHash`."""
    plain = SchemaText('"int"')
    assert plain.guid() == "ef524ea1-b91e-7317-3d93-8ade36c1db32"  # MD5 of the six bytes
    others = [
        SchemaText('"int" '),
        SchemaText('"int"', references=(Reference("a", "b", 1),)),
        SchemaText('"int"', references=(Reference("a", "b", 2),)),
        SchemaText('"int"', metadata=Metadata()),
        SchemaText('"int"', metadata=METADATA),
        SchemaText('"int"', rule_set=RULES),
        SchemaText('"int"', rule_set=RuleSet(domain_rules=(Rule("r", disabled=True),))),
    ]
    assert len({one.guid() for one in (plain, *others)}) == len(others) + 1
    assert SchemaText('"int"', "JSON").guid() == plain.guid()  # Confluent's does not hash the type


def test_sets_and_maps_are_sorted_as_in_java() -> None:
    given = {"properties": {"\U00010000": "a", "\uffff": "b", "z": "c"}, "sensitive": ["b", "a", "b"]}
    found = Metadata.from_json(given)
    assert [name for name, _ in found.properties] == ["z", "\U00010000", "\uffff"]  # by UTF-16
    assert found.sensitive == ("a", "b")


def test_a_configuration_is_merged_and_inherited() -> None:
    one = Config.from_json({"compatibilityLevel": "FULL", "alias": "a", "normalize": True, "unknown": 3})
    changed = one.updated({"alias": None, "compatibilityGroup": "g"})
    assert (changed.alias, changed.compatibility_group, changed.normalize) == (None, "g", True)
    below = Config(alias="b", normalize=False, compatibility_group="h")
    assert changed.over(below) == changed
    assert Config().over(below) == Config(normalize=False, compatibility_group="h")
    wrong: dict[str, Any]
    for wrong in ({"normalize": 1}, {"alias": 3}, {"defaultMetadata": []}, {"compatibilityLevel": "best"}):
        with pytest.raises(ValueError, match="is"):
            Config.from_json(wrong)
