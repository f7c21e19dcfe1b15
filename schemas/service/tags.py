"""Tags within the text of a schema, as Confluent's registry writes them: `confluent:tags` of an Avro record or field
and of a JSON schema, the option `confluent.message_meta` or `confluent.field_meta` of Protobuf.

Paths: of Avro `n.Record` or `n.Record.field`; of JSON `object.field`, with parts such as `array`, `anyof.0` and
`definitions` in between; of Protobuf `Message.Nested.field`, without the package.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from klamm.core.errors import SchemaError

from .. import refusals
from ..avro.parsing import parse_json
from ..formats import Text
from ..java_json import dumps
from ..names import AVRO, JSON
from ..refusals import RefusedError

_TAGS: Final = "confluent:tags"
_RECORD: Final = "sr_record"
_FIELD: Final = "sr_field"
_BRANCHES: Final = {"anyof": "anyOf", "allof": "allOf", "oneof": "oneOf"}


@dataclass(frozen=True)
class TagChanges:
    """Tags by path, and whether that path is a field's."""

    added: Mapping[tuple[str, bool], list[str]]
    removed: Mapping[tuple[str, bool], list[str]]

    @classmethod
    def from_json(cls, given: Mapping[str, Any], added: str, removed: str) -> TagChanges:
        """`added` and `removed` are the names of the lists. Raises `RefusedError` 422."""
        return cls(_listed(given, added), _listed(given, removed))

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)

    def of_each(self) -> Iterator[tuple[str, bool, list[str], list[str]]]:
        """Yields path, whether it is a field's, tags to add and tags to remove."""
        for key in dict.fromkeys((*self.added, *self.removed)):
            yield (*key, self.added.get(key, []), self.removed.get(key, []))


def _listed(given: Mapping[str, Any], name: str) -> dict[tuple[str, bool], list[str]]:
    found: dict[tuple[str, bool], list[str]] = {}
    rows = given.get(name) or []
    try:
        for row in rows:
            entity, tags = row["schemaEntity"], row.get("tags") or []
            path, kind = entity["entityPath"], entity["entityType"]
            if not isinstance(path, str) or kind not in (_RECORD, _FIELD):
                raise ValueError
            if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
                raise ValueError
            found.setdefault((path.removeprefix("."), kind == _FIELD), []).extend(tags)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RefusedError(
            422,
            f"{name} is a list of {{schemaEntity: {{entityPath, entityType: {_RECORD} or {_FIELD}}}, tags: [text]}}",
        ) from None
    return found


def tagged(schema_type: str, text: Text, changes: TagChanges) -> str:
    """Returns the text with the tags changed. Raises `RefusedError` 42201 for a path that leads nowhere."""
    if schema_type not in (AVRO, JSON):
        from ..protobuf.schema import ProtobufSchema

        assert isinstance(text, ProtobufSchema)
        try:
            return text.tagged(changes.of_each())
        except SchemaError as error:
            raise refusals.invalid_schema(str(error)) from error
    if schema_type == AVRO:
        document = parse_json(text.canonical)
    else:
        from ..json_schema.text import load

        document = load(text.canonical)
    for path, is_field, added, removed in changes.of_each():
        found = (_in_avro if schema_type == AVRO else _in_json)(document, path.split("."), is_field)
        if not isinstance(found, dict):
            raise refusals.invalid_schema(f"No matching path '{path}' found in the schema")
        _change(found, added, removed)
    if schema_type == AVRO:
        return dumps(document)
    from ..json_schema.text import dump

    return dump(document)


def _change(node: dict[str, Any], added: Iterable[str], removed: Iterable[str]) -> None:
    old = node.get(_TAGS)
    tags = dict.fromkeys([*(old if isinstance(old, list) else []), *added])
    left = [tag for tag in tags if tag not in set(removed)]
    if left:
        node[_TAGS] = left
    else:
        node.pop(_TAGS, None)


def _in_avro(document: Any, parts: list[str], is_field: bool) -> Any:
    """Finds a record, or its field, breadth first. A path without a namespace is of any."""
    field = parts.pop() if is_field else None
    wanted = ".".join(parts)
    waiting = deque([(document, "")])
    while waiting:
        node, space = waiting.popleft()
        if isinstance(node, list):
            waiting.extend((branch, space) for branch in node)
        if not isinstance(node, dict):
            continue
        kind = node.get("type")
        if kind in ("record", "error"):
            space = node.get("namespace", space)
            if wanted in (node["name"], f"{space}.{node['name']}"):
                if field is None:
                    return node
                return next((one for one in node["fields"] if one["name"] == field), None)
            waiting.extend((one["type"], space) for one in node["fields"])
        else:
            waiting.extend((node[part], space) for part in ("items", "values", "type") if part in node)
    return None


def _in_json(node: Any, parts: list[str], is_field: bool) -> Any:
    waiting = deque(parts)
    while waiting and isinstance(node, dict):
        kind = waiting.popleft()
        if kind == "object":
            if not waiting:
                return None if is_field else node
            within = waiting.popleft() if waiting[0] in ("definitions", "$defs") else "properties"
            node = _by_name(node.get(within), waiting)
            if not waiting:
                return node
        elif kind == "array":
            node = node.get("items")
        elif kind == "not":
            node = node.get("not")
        elif kind in _BRANCHES and waiting:
            number = waiting.popleft()
            branches = node.get(_BRANCHES[kind])
            if isinstance(branches, list):
                node = branches[int(number)] if number.isdigit() and int(number[:9]) < len(branches) else None
            elif kind == "allof" and number == "conditional" and waiting:
                node = node.get(waiting.popleft())
        else:
            return None
    return None


def _by_name(node: Any, waiting: deque[str]) -> Any:
    """Takes the parts that are a name, which may have points."""
    name = ""
    while waiting and isinstance(node, dict):
        name += ("." if name else "") + waiting.popleft()
        if name in node:
            return node[name]
    return None
