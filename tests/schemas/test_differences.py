"""The texts of a compatibility report, as Confluent's registry prints them."""

from __future__ import annotations

from klamm.schemas.differences import Difference, avro_difference, report, report_end


def test_avros_entries() -> None:
    changed = avro_difference("FIXED_SIZE_MISMATCH", "/size", "expected: 8, found: 4")
    assert changed.message("new", "old") == (
        "{errorType:'FIXED_SIZE_MISMATCH', description:'The size of FIXED type field at path '/size' in the new schema"
        " does not match with the old schema', additionalInfo:'expected: 8, found: 4'}"
    )
    missing = avro_difference("READER_FIELD_MISSING_DEFAULT_VALUE", "/fields/1", "b")
    assert missing.message("old", "new") == (
        "{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE', description:'The field 'b' at path '/fields/1' in the old"
        " schema has no default value and is missing in the new schema', additionalInfo:'b'}"
    )
    named = avro_difference("NAME_MISMATCH", "/name", "expected: n.R")
    assert "The name of the schema has changed (path '/name')'" in named.message()


def test_a_report_has_the_incompatible_ones() -> None:
    found = [
        Difference("TITLE_CHANGED", "#/", compatible=True),
        Difference("TYPE_CHANGED", "#/properties/%s", False, "A type at path '{path}' differs between %s and %s"),
    ]
    (entry,) = report(found, "old", "new")
    assert entry == (
        '{errorType:"TYPE_CHANGED", description:"A type at path \'#/properties/%s\' differs between old and new"}'
    )


def test_the_end_of_a_report() -> None:
    assert report_end(3, '{"type":"string"}', "BACKWARD") == [
        "{oldSchemaVersion: 3}",
        '{oldSchema: \'{"type":"string"}\'}',
        "{validateFields: 'false', compatibility: 'BACKWARD'}",
    ]
    assert report_end(3, "x" * 20_000, "FULL", validate_fields=True)[1:] == [
        f"{{oldSchema: <truncated> '{'x' * 10_240}...'}}",
        "{validateFields: 'true', compatibility: 'FULL'}",
    ]
