"""The messages of a Protobuf schema as classes, made at run time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from google.protobuf.descriptor_pb2 import DescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from klamm.core.errors import SchemaError

from .schema import ProtobufSchema

Place = tuple[int, ...]
"""The index of a message in the file, then within it. Entries of maps count: descriptors have them as messages."""


class Messages:
    """The messages of one file. Thread-safe."""

    def __init__(self, schema: ProtobufSchema) -> None:
        """Raises `SchemaError` if the schema does not compile."""
        files = schema.files.file
        self.pool = DescriptorPool()
        for file in files:
            self.pool.Add(file)
        package = f"{files[-1].package}." if files[-1].package else ""
        self._names: dict[Place, str] = dict(_named(files[-1].message_type, (), package))
        self._classes: dict[Place, type[Message]] = {}

    def at(self, place: Place) -> type[Message]:
        """Returns the class of a message. Raises `SchemaError` if there is none at the place."""
        if place not in self._classes:
            if place not in self._names:
                raise SchemaError(f"the schema has no message at {'.'.join(map(str, place))}")
            self._classes[place] = GetMessageClass(self.pool.FindMessageTypeByName(self._names[place]))
        return self._classes[place]

    def place(self, name: str | None) -> Place:
        """Returns the place of a message by its full name, that of the first one for None. Raises `SchemaError`, which
        lists the messages, if there is none."""
        if name is None and self._names:
            return (0,)
        for place, known in self._names.items():
            if known == name:
                return place
        there = ", ".join(self._names.values()) or "none"
        raise SchemaError(f"the schema has no message{f' {name}' if name else ''} (there are: {there})")


def _named(messages: Iterable[DescriptorProto], above: Place, prefix: str) -> Iterator[tuple[Place, str]]:
    for index, message in enumerate(messages):
        if not message.options.map_entry:
            name = prefix + message.name
            yield (*above, index), name
            yield from _named(message.nested_type, (*above, index), f"{name}.")
