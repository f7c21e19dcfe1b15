"""The three formats of schemas: parses a text, makes its canonical form, and compares two versions.

JSON Schema and Protobuf need the packages of the extra `registry`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol

from klamm.core.errors import SchemaError

from . import refusals
from .avro.canonical import canonical_text
from .avro.comparison import differences as avro_differences
from .avro.normalized import normalized_text
from .avro.parsing import ParsedSchema, check_new, parse
from .differences import CompatibilityPolicy, Difference
from .names import AVRO, JSON, PROTOBUF


class Text(Protocol):
    """A parsed text of a schema."""

    @property
    def canonical(self) -> str:
        """The form that is stored and compared."""
        ...

    @property
    def normalized(self) -> str:
        """The canonical form of all texts that mean the same."""
        ...


@dataclass(frozen=True)
class AvroText:
    """An Avro schema; `references` are the texts of the types that it names, in the order in which they build on each
    other."""

    text: str
    references: tuple[str, ...]
    new: bool

    def __post_init__(self) -> None:
        (check_new if self.new else parse)(self.text, self.references)

    @cached_property
    def parsed(self) -> ParsedSchema:
        return parse(self.text, self.references)

    @cached_property
    def canonical(self) -> str:
        return _printed(canonical_text, self)

    @cached_property
    def normalized(self) -> str:
        return _printed(lambda text, known: normalized_text(text, self.parsed.root, known), self)

    @property
    def resolved(self) -> str:
        """The text with its references written out."""
        return self.parsed.text

    @property
    def fields(self) -> frozenset[str]:
        return frozenset(field.name for field in self.parsed.root.fields)

    def names(self) -> list[str]:
        """Returns the types of the references."""
        return [parse(text, self.references[:at]).root.name for at, text in enumerate(self.references)]


def _printed(form: Callable[[str, Iterable[str]], str], text: AvroText) -> str:
    try:
        return form(text.text, text.names())
    except SchemaError as error:
        raise refusals.invalid_schema(str(error)) from error


def parsed(schema_type: str, text: str, references: Mapping[str, str], *, new: bool) -> Text:
    """Parses a text. `references`: the texts by the names that it uses, each before those that refer to it. `new`:
    checks it as a text that is to be registered. Raises `RefusedError` 42201 if it is not a schema of this format."""
    try:
        if schema_type == AVRO:
            made = AvroText(text, tuple(dict.fromkeys(references.values())), new)
            if new:
                made.canonical  # noqa: B018 - what cannot be printed cannot be registered
            return made
        if schema_type == JSON:
            from .json_schema.schema import parse as parse_json_schema

            return parse_json_schema(text, references, new=new)
        if schema_type == PROTOBUF:
            from .protobuf.schema import parse as parse_protobuf

            return parse_protobuf(text, references, new=new)
    except SchemaError as error:
        raise refusals.invalid_schema(str(error)) from error
    raise refusals.invalid_schema(f"Invalid schema type {schema_type}")


def differences(
    schema_type: str, original: Text, update: Text, policy: CompatibilityPolicy = CompatibilityPolicy.STRICT
) -> list[Difference]:
    """Returns the differences for data written with `original` and read with `update`; incompatible ones have
    `compatible` False. Raises `SchemaError` if the two cannot be compared within the limits."""
    if schema_type == AVRO:
        assert isinstance(original, AvroText)
        assert isinstance(update, AvroText)
        return avro_differences(original.parsed.root, update.parsed.root)
    if schema_type == JSON:
        from .json_schema.comparison import differences as json_differences
        from .json_schema.schema import JsonSchema

        assert isinstance(original, JsonSchema)
        assert isinstance(update, JsonSchema)
        return json_differences(original, update, policy)
    from .protobuf.comparison import differences as protobuf_differences
    from .protobuf.schema import ProtobufSchema

    assert isinstance(original, ProtobufSchema)
    assert isinstance(update, ProtobufSchema)
    return protobuf_differences(original, update)


FORMATS: Final = (JSON, PROTOBUF, AVRO)
"""In the order in which Confluent lists them."""
