"""A Protobuf schema of the registry."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, Final

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError, Error, Message
from google.protobuf.text_encoding import CEscape

from klamm.core.errors import SchemaError

from .compiler import WORKER
from .known import known_files
from .printing import print_file

MAX_TEXT: Final = 1024 * 1024
"""Characters of a schema."""
MAX_REFERENCES: Final = 16 * MAX_TEXT
"""Characters of all texts that a schema refers to."""
_NAME: Final = "schema.proto"
_META: Final = "confluent/meta.proto"
_IDENTIFIERS: Final = (
    "syntax",
    "name",
    "package",
    "type_name",
    "extendee",
    "input_type",
    "output_type",
    "reserved_name",
)
_IDENTIFIER: Final = re.compile(r"\.?[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)
_NUMBER: Final = re.compile(r"[-+.\w]*", re.ASCII)
_DEFAULTS: Final = {
    FieldDescriptorProto.TYPE_STRING: re.compile(r".*", re.DOTALL),
    FieldDescriptorProto.TYPE_BYTES: re.compile(r'(?:[^"\\\n]|\\.)*'),
}
"""A default by the field's type, as a descriptor has it: of bytes it is escaped. The others are numbers and names."""
_BASE64: Final = re.compile(r"[A-Za-z0-9+/\s]+={0,2}")


@dataclass(frozen=True, eq=False)
class ProtobufSchema:
    """`text` is as it was given, `references` the texts by import path. Only `canonical` is there for a text that does
    not compile; the other attributes raise `SchemaError`."""

    text: str
    references: Mapping[str, str]

    @cached_property
    def files(self) -> FileDescriptorSet:
        """Descriptors of the imports, then of the schema."""
        return _compiled(_from_base64(self.text, self.references) or self.text, self.references)

    @cached_property
    def canonical(self) -> str:
        """The text without comments, type names in full; the text itself if it does not compile."""
        try:
            return print_file(self.files)
        except SchemaError:
            return self.text

    @cached_property
    def normalized(self) -> str:
        """Fields by number, imports and options sorted."""
        return print_file(self.files, normalize=True)

    @cached_property
    def without_extensions(self) -> str:
        """The text without custom options and `extend`: the format `ignore_extensions`."""
        return print_file(self.files, extensions=False)

    @cached_property
    def serialized(self) -> str:
        """The base64 of the FileDescriptorProto: the format `serialized`, which Python's clients ask for."""
        file = FileDescriptorProto()
        file.CopyFrom(self.files.file[-1])
        file.ClearField("name")
        return base64.b64encode(file.SerializeToString()).decode()

    def tagged(self, changes: Iterable[tuple[str, bool, Sequence[str], Sequence[str]]]) -> str:
        """Returns the text with tags added and removed in `confluent.message_meta` and `confluent.field_meta`.

        A change: the path of a message, or (True) of its field, tags to add, tags to remove. Raises `SchemaError` for a
        path that leads nowhere.
        """
        file = FileDescriptorProto()
        file.CopyFrom(self.files.file[-1])
        imports = {each.name: each for each in self.files.file[:-1]}
        if _META not in file.dependency:
            file.dependency.append(_META)
            meta = _compiled(f'syntax = "proto3"; import "{_META}";', {}).file[:-1]
            imports = {each.name: each for each in meta} | imports
        pool = descriptor_pool.DescriptorPool()
        for each in imports.values():
            pool.AddSerializedFile(each.SerializeToString())
        for path, is_field, added, removed in changes:
            entity = _entity(file, path.split("."), is_field)
            kind = "field" if is_field else "message"
            options = message_factory.GetMessageClass(
                pool.FindMessageTypeByName(entity.options.DESCRIPTOR.full_name)
            ).FromString(entity.options.SerializeToString())
            extension = pool.FindExtensionByName(f"confluent.{kind}_meta")
            tags = options.Extensions[extension].tags
            left = [tag for tag in dict.fromkeys((*tags, *added)) if tag not in set(removed)]
            del tags[:]
            tags.extend(left)
            if not options.Extensions[extension].ByteSize():
                options.ClearExtension(extension)
            entity.options.ParseFromString(options.SerializeToString())
        return _printed(file, list(imports.values()))

    @cached_property
    def fields(self) -> frozenset[str]:
        """Names of the fields of the first message."""
        messages = self.files.file[-1].message_type
        return frozenset(field.name for field in messages[0].field) if messages else frozenset()


def parse(text: str, references: Mapping[str, str] | None = None, *, new: bool = True) -> ProtobufSchema:
    """Parses a `.proto` text or the base64 of a FileDescriptorProto. `references` are texts by import path; well-known
    imports need none. `new`: compiles it; a text that the topic has already is compiled when it is first used.

    Raises `SchemaError` in one line, with the place, if it does not compile or is beyond the limits.
    """
    if len(text) > MAX_TEXT:
        raise SchemaError(f"a schema of {len(text)} characters; the limit is {MAX_TEXT}")
    schema = ProtobufSchema(text, dict(references or {}))
    if new:
        schema.files  # noqa: B018 - compiles it
    return schema


def _entity(file: FileDescriptorProto, parts: list[str], is_field: bool) -> Any:
    """Returns the message, or the field, of a path; the name of its oneof may stand before a field's."""
    names = parts[:-1] if is_field else parts
    messages, found = file.message_type, None
    for at, name in enumerate(names):
        inner = next((one for one in messages if one.name == name), None)
        oneofs = () if found is None else [one.name for one in found.oneof_decl]
        if inner is None and is_field and at == len(names) - 1 and name in oneofs:
            break
        if inner is None:
            raise SchemaError(f"No matching Message with name '{name[:200]}' found in the schema")
        found, messages = inner, inner.nested_type
    if found is not None and is_field:
        field = next((one for one in found.field if one.name == parts[-1]), None)
        if field is None:
            raise SchemaError(f"No matching Field with name '{parts[-1][:200]}' found in the schema")
        return field
    if found is None:
        raise SchemaError(f"No matching Message with name '{'.'.join(parts)[:200]}' found in the schema")
    return found


def _compiled(text: str, references: Mapping[str, str]) -> FileDescriptorSet:
    if not text.strip():
        raise SchemaError("not a Protobuf schema: the text is empty")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise SchemaError("not a Protobuf schema: half of a surrogate pair") from None
    if sum(map(len, references.values())) > MAX_REFERENCES:
        raise SchemaError(f"the references have more than {MAX_REFERENCES} characters")
    own = {name: _text_of(name, part) for name, part in references.items() if name not in known_files()}
    name = _NAME
    while name in own:
        name = f"_{name}"
    return FileDescriptorSet.FromString(WORKER.compile(name, text, own))


def _text_of(name: str, text: str) -> str:
    """Returns a reference's text; its name is an import path, which becomes a path below the compiler's folder."""
    parts = name.split("/")
    if not name.isprintable() or "\\" in name or {"", ".", ".."} & set(parts) or len(name) > 1000:
        raise SchemaError(f"the reference {name[:200]!r} is no import path (such as 'team/order.proto')")
    if any(len(part.encode()) > 255 for part in PurePosixPath(name).parts):
        raise SchemaError(f"the reference {name[:200]!r} has a part of more than 255 bytes")
    return text if (file := _descriptor(text)) is None else _printed(file, [])


def _from_base64(text: str, references: Mapping[str, str]) -> str | None:
    """Returns the `.proto` text of a base64 descriptor, None if it is none. Its imports define its custom options."""
    file = _descriptor(text)
    if file is None:
        return None
    imports = [f'import "{CEscape(name, True)}";' for name in file.dependency]
    files = _compiled("\n".join(['syntax = "proto3";', *imports]), references).file[:-1] if imports else []
    return _printed(file, files)


def _printed(file: FileDescriptorProto, imports: Sequence[FileDescriptorProto]) -> str:
    file.name = _NAME
    try:
        return print_file(FileDescriptorSet(file=[*imports, file]))
    except (Error, IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise SchemaError(f"not a Protobuf schema: the base64 is no FileDescriptorProto: {error!s:.200}") from error


def _check_names(described: Message) -> None:
    """Raises `SchemaError` for a text that is not UTF-8, and a name or default that would print as more than that."""
    for field, value in described.ListFields():
        if field.name == "options":
            continue
        for part in value if field.is_repeated else (value,):
            if field.message_type is not None:
                _check_names(part)
            elif field.type == field.TYPE_STRING and isinstance(part, bytes):
                raise SchemaError(f"not a Protobuf schema: {part[:100]!r} in the base64 descriptor is not UTF-8")
            elif field.name in _IDENTIFIERS and not _IDENTIFIER.fullmatch(part):
                raise SchemaError(f"not a Protobuf schema: {part[:100]!r} in the base64 descriptor is no name")
            elif field.name == "default_value" and not _DEFAULTS.get(described.type, _NUMBER).fullmatch(part):
                raise SchemaError(f"not a Protobuf schema: {part[:100]!r} in the base64 descriptor is no default")


def _descriptor(text: str) -> FileDescriptorProto | None:
    if not _BASE64.fullmatch(text := text.strip()):
        return None
    try:
        file = FileDescriptorProto.FromString(base64.b64decode(text, validate=False))
    except binascii.Error:
        return None
    except DecodeError as error:
        raise SchemaError(f"not a Protobuf schema: the base64 is no FileDescriptorProto: {error!s:.200}") from error
    _check_names(file)
    return file
