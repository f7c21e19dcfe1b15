"""`make registry-differences JUDGE=folder`: the comparison of schemas beside the examples of Confluent's registry.

The examples are not part of this repository. `folder` holds the files of `json-schema-provider/src/test/resources` and
`protobuf-provider/src/test/resources` of confluentinc/schema-registry whose names begin with `diff-`, in any
subfolders; a `.proto` file that an example names is looked up beside its file.
An example has two schemas, the expected changes (kind and path) and whether they are compatible. The order of the
changes is not compared: Confluent's is that of a hash table.

Prints a line for each difference, `explained` with the reason or `WRONG`, and the totals. Exit 1 if one is not
explained or if there is no example.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from klamm.core.errors import SchemaError
from klamm.schemas.differences import CompatibilityPolicy, Difference
from klamm.schemas.json_schema import comparison as json_comparison
from klamm.schemas.json_schema.schema import parse as parse_json
from klamm.schemas.protobuf import comparison as proto_comparison
from klamm.schemas.protobuf.schema import parse as parse_proto

EXPLAINED: Final[Mapping[tuple[str, str], str]] = {
    ("diff-schema-examples-2020-12.json", "Detect changes to id"): (
        "Confluent's translation of 2020-12 loses the `$id` of a schema without other keywords; a changed `$id` is"
        " reported here, as it is for draft 7, and is compatible"
    ),
}
"""By file and description of the example: why Klamm's answer is another one. docs/registry-formats.md has them too."""

_NO_JSON: Final = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\n]*|#[^\n]*|/\*.*?\*/|,(?=\s*[}\]])', re.DOTALL)


@dataclass(frozen=True)
class Judgement:
    """`wanted` and `got` are the changes, sorted, then `compatible` or `incompatible` by each policy."""

    file: str
    description: str
    wanted: list[str]
    got: list[str]

    @property
    def reason(self) -> str | None:
        return EXPLAINED.get((self.file, self.description))


def judged(folder: Path) -> Iterator[Judgement]:
    for path in sorted(folder.rglob("diff-*.json")):
        for example in _read(path):
            yield _judge(path, example)


def _read(path: Path) -> list[dict[str, Any]]:
    """The files have comments and commas before a closing bracket, which Java's parser of them accepts."""
    text = _NO_JSON.sub(lambda found: found[1] or "", path.read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = json.loads(text)
    return found


def _judge(path: Path, example: dict[str, Any]) -> Judgement:
    verdicts = [example["compatible"], example.get("compatible_lenient", example["compatible"])]
    wanted = [*sorted(example["changes"]), *map(_verdict, verdicts)]
    try:
        answers = [_differences(path.parent, example, policy) for policy in CompatibilityPolicy]
        got = sorted(f"{each.type} {each.path}" for each in answers[0])
        got += [_verdict(all(each.compatible for each in answer)) for answer in answers]
    except SchemaError as error:
        got = [f"refused: {error}"]
    return Judgement(path.name, example["description"], wanted, got)


def _verdict(compatible: bool) -> str:
    return "compatible" if compatible else "incompatible"


def _differences(folder: Path, example: dict[str, Any], policy: CompatibilityPolicy) -> list[Difference]:
    if isinstance(example["original_schema"], str):
        old, new = (
            parse_proto(_proto(folder, example[f"{name}_schema"]), _references(folder, example, name))
            for name in ("original", "update")
        )
        return proto_comparison.differences(old, new)
    original, update = (parse_json(json.dumps(example[f"{name}_schema"])) for name in ("original", "update"))
    return json_comparison.differences(original, update, policy)


def _proto(folder: Path, text: str) -> str:
    """Text may be the name of a file."""
    return (folder / text).read_text(encoding="utf-8") if text.endswith(".proto") else text


def _references(folder: Path, example: dict[str, Any], name: str) -> dict[str, str]:
    given = example.get(f"{name}_dependencies", [])
    return {each["name"]: _proto(folder, each["dependency"]) for each in given if "dependency" in each}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make registry-differences")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    same = explained = wrong = 0
    for judgement in judged(folder):
        if judgement.wanted == judgement.got:
            same += 1
            continue
        verdict = f"explained: {judgement.reason}" if judgement.reason else "WRONG"
        explained, wrong = explained + bool(judgement.reason), wrong + (not judgement.reason)
        print(f"{judgement.file}: {judgement.description}: wanted {judgement.wanted}, got {judgement.got}: {verdict}")
    print(f"{same + explained + wrong} examples: {same} as Confluent's, {explained} explained, {wrong} WRONG")
    if not same:
        print(f"no examples (diff-*.json) in {folder}", file=sys.stderr)
    return int(wrong > 0 or not same)


if __name__ == "__main__":
    sys.exit(main())
