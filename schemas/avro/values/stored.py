"""Schemas as fastavro needs them to decode and encode stored values: without logical types, and with names of our own,
since fastavro refuses some that others have written.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from ..model import NAME, AvroType


class StoredTypes:
    """Makes the parts of one schema. A named type is defined where it is first used."""

    def __init__(self) -> None:
        self._names: dict[Hashable, str] = {}
        self._defined: set[str] = set()

    def of(self, avro: AvroType) -> Any:
        match avro.kind:
            case "union":
                return [self.of(branch) for branch in avro.branches]
            case "array":
                return {"type": "array", "items": self.of(avro.inner)}
            case "map":
                return {"type": "map", "values": self.of(avro.inner)}
            case "record" | "enum" | "fixed":
                return self.once(id(avro), lambda name: self.named(avro, name))
        return avro.kind

    def named(self, avro: AvroType, name: str) -> Any:
        """Returns the definition of a named type under a name of ours."""
        if avro.kind == "enum":
            return {"type": "enum", "name": name, "symbols": symbols(avro.symbols)}
        if avro.kind == "fixed":
            return {"type": "fixed", "name": name, "size": avro.size}
        fields = [{"name": field.name, "type": self.of(field.type)} for field in avro.fields]
        return {"type": "record", "name": name, "fields": fields}

    def once(self, key: Hashable, define: Callable[[str], Any]) -> Any:
        """Returns a definition, and the name alone where it was defined before: a record may contain itself."""
        name = self._name(key)
        if name in self._defined:
            return name
        self._defined.add(name)
        return define(name)

    def new_name(self) -> str:
        return self._name(object())

    def _name(self, key: Hashable) -> str:
        return self._names.setdefault(key, f"t{len(self._names)}")


def symbols(given: Sequence[str]) -> list[str]:
    """Returns an enum's symbols, numbered where one is no Avro name or occurs twice."""
    plain = all(map(NAME.fullmatch, given)) and len(set(given)) == len(given)
    return list(given) if plain else [f"s{index}" for index in range(len(given))]
