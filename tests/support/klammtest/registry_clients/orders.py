"""The schemas and the record that all clients get."""

from __future__ import annotations

import base64
import json
import tempfile
from pathlib import Path
from typing import Any, Final

FORMATS: Final = ("avro", "json", "protobuf")
INCOMPATIBLE: Final = "Schema being registered is incompatible with an earlier schema for subject"


def record_of(client: str) -> dict[str, Any]:
    """Returns what a client writes."""
    lines = [{"sku": "a-1", "count": 2}, {"sku": "ü", "count": 1}]
    return {"id": 9_007_199_254_740_990, "note": f"größe, {client}", "amount": 12.5, "lines": lines, "currency": "CHF"}


_LINE: Final = {
    "type": "record", "name": "Line", "namespace": "shop",
    "fields": [{"name": "sku", "type": "string"}, {"name": "count", "type": "int"}],
}  # fmt: skip
_FIELDS: Final = [
    {"name": "id", "type": "long"}, {"name": "note", "type": "string"}, {"name": "amount", "type": "double"},
    {"name": "lines", "type": {"type": "array", "items": "shop.Line"}},
]  # fmt: skip
_CURRENCY: Final = {"name": "currency", "type": "string"}


def _avro(*more: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": [*_FIELDS, *more]})


def _json(title: str, properties: dict[str, Any], required: list[str]) -> str:
    return json.dumps(
        {
            "$schema": "http://json-schema.org/draft-07/schema#", "title": title, "type": "object",
            "properties": properties, "required": required, "additionalProperties": False,
        }
    )  # fmt: skip


_PROPERTIES: Final[dict[str, Any]] = {
    "id": {"type": "integer"}, "note": {"type": "string"}, "amount": {"type": "number"},
    "lines": {"type": "array", "items": {"$ref": "line.json"}},
}  # fmt: skip
_LINE_PROPERTIES: Final = {"sku": {"type": "string"}, "count": {"type": "integer"}}
_PROTO_LINE: Final = 'syntax = "proto3";\npackage shop;\n\nmessage Line {\n  string sku = 1;\n  int32 count = 2;\n}\n'


def _proto(kind: str, more: str = "") -> str:
    return (
        'syntax = "proto3";\npackage shop;\n\nimport "line.proto";\n\nmessage Order {\n'
        f"  {kind} id = 1;\n  string note = 2;\n  double amount = 3;\n  repeated Line lines = 4;\n{more}}}\n"
    )


_EVOLVED_PROTO: Final = _proto("int64", "  string currency = 5;\n")
_TEXTS: Final[dict[str, dict[str, str]]] = {
    "avro": {
        "type": "AVRO",
        "line_name": "shop.Line",
        "line": json.dumps(_LINE),
        "order": _avro(),
        "evolved": _avro({**_CURRENCY, "default": "EUR"}),
        "refused": _avro(_CURRENCY, {"name": "more", "type": "int"}),
    },
    "json": {
        "type": "JSON",
        "line_name": "line.json",
        "line": json.dumps({"$id": "line.json", **json.loads(_json("Line", _LINE_PROPERTIES, ["sku"]))}),
        "order": _json("Order", _PROPERTIES, ["id"]),
        "evolved": _json("Order", {**_PROPERTIES, "currency": {"type": "string"}}, ["id"]),
        "refused": _json("Order", {**_PROPERTIES, "id": {"type": "string"}}, ["id"]),
    },
    "protobuf": {
        "type": "PROTOBUF",
        "line_name": "line.proto",
        "line": _PROTO_LINE,
        "order": _proto("int64"),
        "evolved": _EVOLVED_PROTO,
        "refused": _proto("string"),
    },
}


def topic_of(client: str, name: str) -> str:
    return f"orders-{client}-{name}"


def formats_of(client: str) -> dict[str, dict[str, str]]:
    return {name: {**texts, "topic": topic_of(client, name)} for name, texts in _TEXTS.items()}


def descriptors() -> str:
    """Returns base64 of the evolved Protobuf schema with its import, as protoc compiles them."""
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "line.proto").write_text(_PROTO_LINE)
        Path(folder, "order.proto").write_text(_EVOLVED_PROTO)
        out = Path(folder, "set")
        arguments = ["protoc", f"-I{folder}", "--include_imports", f"--descriptor_set_out={out}", "order.proto"]
        if protoc.main(arguments):
            raise RuntimeError("protoc failed")
        return base64.b64encode(out.read_bytes()).decode()
