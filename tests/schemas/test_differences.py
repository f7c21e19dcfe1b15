"""The texts of Avro's differences, as Confluent's registry prints them."""

from __future__ import annotations

from klamm.schemas.differences import avro_difference


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
