"""The imports that need no reference: `google/protobuf/…`, `google/type/…` and Confluent's `confluent/…`."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Final

_META: Final = """syntax = "proto3";
package confluent;

import "google/protobuf/descriptor.proto";

option java_package = "io.confluent.protobuf";
option java_outer_classname = "MetaProto";

message Meta {
  string doc = 1;
  map<string, string> params = 2;
  repeated string tags = 3;
  repeated Rule rules = 4;
}
message Rule {
  string name = 1;
  string doc = 2;
  string expr = 3;
  string sql = 4;
}

extend google.protobuf.FileOptions {
  Meta file_meta = 1088;
}
extend google.protobuf.MessageOptions {
  Meta message_meta = 1088;
}
extend google.protobuf.FieldOptions {
  Meta field_meta = 1088;
}
extend google.protobuf.EnumOptions {
  Meta enum_meta = 1088;
}
extend google.protobuf.EnumValueOptions {
  Meta enum_value_meta = 1088;
}
"""
_TYPE: Final = """syntax = "proto3";
package confluent.type;

option java_package = "io.confluent.protobuf.type";
option java_multiple_files = true;
option java_outer_classname = "{name}Proto";

message {name} {{
{fields}}}
"""
_CONFLUENT: Final = {
    "confluent/meta.proto": _META,
    "confluent/type/decimal.proto": _TYPE.format(
        name="Decimal", fields="  bytes value = 1;\n  uint32 precision = 2;\n  int32 scale = 3;\n"
    ),
    "confluent/type/variant.proto": _TYPE.format(name="Variant", fields="  bytes metadata = 1;\n  bytes value = 2;\n"),
}
"""What Confluent's serializers import; the wire format of its metadata and its two types."""


@cache
def known_files() -> dict[str, str]:
    """Returns the texts by import path."""
    found = dict(_CONFLUENT)
    google = resources.files("grpc_tools") / "_proto" / "google" / "protobuf"
    for folder, root in (("google/protobuf", google), ("google/type", resources.files("google.type"))):
        for file in root.iterdir():
            if file.name.endswith(".proto"):
                found[f"{folder}/{file.name}"] = file.read_text(encoding="utf-8")
    return found
