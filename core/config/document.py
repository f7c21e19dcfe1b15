"""Reads a YAML document: refuses duplicate keys, substitutes environment variables, and keeps the line of each key.

PyYAML reads YAML 1.1; editors, linters and other languages read YAML 1.2. A plain scalar whose value differs between
the two (`010`, `22:30`, `1_000`, `yes`, `1e3`) is refused, with both values and the text to write instead. Dates are
text, as in the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..errors import ConfigError
from .problems import ConfigProblem
from .problems import Path as KeyPath

MAX_SIZE = 1 << 20
MAX_DEPTH = 32
_TAG = "tag:yaml.org,2002:"
_BOOLEANS = {"yes": "true", "on": "true", "no": "false", "off": "false"}
"""Words that are booleans in YAML 1.1 and text in YAML 1.2."""
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+")
"""Whole numbers that YAML 1.1 and 1.2 read alike."""
_FLOAT = re.compile(r"([-+]?(0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+)(e[-+][0-9]+)?|[-+]?\.inf", re.IGNORECASE)
_NUMBER_1_2 = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|0o[0-7]+")
"""A number in YAML 1.2, which YAML 1.1 may read as text."""
_VARIABLE = re.compile(r"\$\$\{|\$\{(?P<name>[^}:]*)(?P<default>:-[^}]*)?\}|\$\{")


@dataclass
class Document:
    """`tree` has dicts, lists and scalars; `lines` has each key's line, from 1; `name` precedes each problem."""

    name: str
    base_dir: Path
    tree: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[ConfigProblem] = field(default_factory=list)
    ambiguous: list[str] = field(default_factory=list)
    """One line for each value that YAML 1.1 and 1.2 read differently."""

    def fail(self, problems: list[ConfigProblem]) -> ConfigError:
        """Returns an error with a line for each problem: `klamm.yaml:3: broker.log.retention.hour: unknown key; did you
        mean …?`"""
        return ConfigError("\n".join(f"{self._place(problem.path)}: {problem}" for problem in problems))

    def _place(self, path: KeyPath) -> str:
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.name}:{self.lines[path]}" if path else self.name


def read(source: str | Path | Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Document:
    """Reads a file, or a mapping of the same shape (then relative paths are relative to the working directory)."""
    if isinstance(source, Mapping):
        document = Document("configuration", Path.cwd(), dict(source))
    elif isinstance(source, str | Path):
        document = _load(Path(source))
    else:
        raise ConfigError(f"a configuration is a file's path or a mapping of the same shape, not {source!r}")
    document.tree = _substituted(document.tree, (), document.problems, environ)
    return document


def _load(path: Path) -> Document:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; `klamm init` writes one") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise ConfigError(f"{path}: cannot be read: {reason}") from error
    if len(text) > MAX_SIZE:
        raise ConfigError(f"{path}: is larger than {MAX_SIZE} characters")
    document = Document(path.name, path.absolute().parent, None)
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        document.tree = {} if node is None else _construct(loader, node, (), document)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        quote = "; quote ${…} inside braces" if "${" in "".join(text.splitlines()[line - 1 : line]) else ""
        raise ConfigError(f"{path.name}:{line}: not YAML: {error.problem or error.context}{quote}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path.name}: not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ConfigError(f"{path.name}: not YAML: nested too deep") from error
    if document.ambiguous:
        raise ConfigError("\n".join(document.ambiguous))
    return document


def _construct(loader: yaml.SafeLoader, node: yaml.Node, path: KeyPath, document: Document) -> Any:
    """Builds the tree. PyYAML's own constructor takes the last of two equal keys and drops line numbers."""
    if len(path) > MAX_DEPTH:
        raise yaml.MarkedYAMLError(problem="nested too deep", problem_mark=node.start_mark)
    if isinstance(node, yaml.SequenceNode):
        return [_construct(loader, item, (*path, i), document) for i, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return _scalar(loader, node, path, document)
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == "tag:yaml.org,2002:merge":
            merge = " (`<<` is not supported: write the keys out)" if isinstance(key_node, yaml.ScalarNode) else ""
            raise yaml.MarkedYAMLError(problem=f"a key should be plain text{merge}", problem_mark=key_node.start_mark)
        name = str(key_node.value)
        at = (*path, name)
        if name in result:
            raise yaml.MarkedYAMLError(
                problem=f"{'.'.join(map(str, at))} is given twice, first on line {document.lines[at]}",
                problem_mark=key_node.start_mark,
            )
        document.lines[at] = key_node.start_mark.line + 1
        result[name] = _construct(loader, value_node, at, document)
    return result


class WrittenFloat(float):
    """A number with its text in the file, for keys whose values are text: `1.10` stays `1.10`."""

    def __new__(cls, text: str, value: float) -> WrittenFloat:
        made = super().__new__(cls, value)
        made.text = text
        return made

    text: str

    def __str__(self) -> str:
        return self.text


def _scalar(loader: yaml.SafeLoader, node: yaml.Node, path: KeyPath, document: Document) -> Any:
    """Converts a scalar. A value that YAML 1.1 and 1.2 read differently, and NaN, are added to `document.ambiguous`.
    Raises `MarkedYAMLError` for a value that does not have the type of its tag (`!!int x`), or has no type in YAML
    1.1 (`0x_`)."""
    kind = node.tag.removeprefix(_TAG)
    if kind in ("timestamp", "value"):
        return node.value
    try:
        if _is_plain(loader, node) and (problem := _ambiguous(kind, node.value)) is not None:
            place = f"{document.name}:{node.start_mark.line + 1}: {'.'.join(map(str, path))}"
            document.ambiguous.append(f"{place}: {problem}")
            return None
        value = loader.construct_object(node)
    except (ValueError, LookupError, ArithmeticError, AttributeError) as error:
        problem = f"{node.value!r:.200} is not a valid {kind}; put it in quotes if it is text"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from error
    return WrittenFloat(node.value, value) if isinstance(value, float) else value


def _is_plain(loader: yaml.SafeLoader, node: yaml.Node) -> bool:
    """Returns whether the scalar has neither quotes nor a tag that changes its type."""
    resolved: Any = loader.resolve(yaml.ScalarNode, node.value, (True, False))  # type: ignore[no-untyped-call]
    return isinstance(node, yaml.ScalarNode) and node.style is None and bool(resolved == node.tag)


def _ambiguous(kind: str, text: str) -> str | None:
    """Returns why a plain scalar is refused, and what to write instead; `kind` is its type in YAML 1.1."""
    if kind == "bool" and (value := _BOOLEANS.get(text.lower())) is not None:
        return f"{text} is {value} to YAML 1.1 and text to YAML 1.2: write {value}, or '{text}' if it is text"
    if kind == "float" and "nan" in text.lower():
        return f"{text} is not a number: write a number, or '{text}' if it is text"
    if (kind == "int" and not _INT.fullmatch(text)) or (kind == "float" and not _FLOAT.fullmatch(text)):
        one, other = _one_one(kind, text), _one_two(text)
        if other != "text" and float(other) == one:  # 00, 07, 09.5
            return None
        return f"{text} is {one} to YAML 1.1 and {other} to YAML 1.2: {_instead(kind, text)}"
    if kind == "str" and _NUMBER_1_2.fullmatch(text):
        number = _one_two(text)
        return f"{text} is text to YAML 1.1 and {number} to YAML 1.2: write {number}, or '{text}' if it is text"
    return None


def _one_one(kind: str, text: str) -> Any:
    return yaml.SafeLoader("").construct_object(yaml.ScalarNode(f"{_TAG}{kind}", text))


def _one_two(text: str) -> str:
    if text.startswith("0o"):
        return str(int(text, 8))
    if not _NUMBER_1_2.fullmatch(text):
        return "text"
    number = float(text)
    return str(int(text)) if text.lstrip("+-").isdigit() else str(int(number) if number.is_integer() else number)


def _instead(kind: str, text: str) -> str:
    """Returns the unambiguous forms of a text that YAML 1.1 reads as a number."""
    numbers = [str(_one_one(kind, text))]
    if (other := _one_two(text)) not in ("text", numbers[0]):
        numbers.insert(0, other)
    return f"write {' or '.join(numbers)}, or '{text}' if it is text"


def _substituted(value: Any, path: KeyPath, problems: list[ConfigProblem], environ: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _substituted(v, (*path, str(k)), problems, environ) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_substituted(v, (*path, i), problems, environ) for i, v in enumerate(value)]
    if isinstance(value, str) and "${" in value:
        return _VARIABLE.sub(_lookup(path, problems, environ), value)
    return value


def _lookup(path: KeyPath, problems: list[ConfigProblem], environ: Mapping[str, str]) -> Callable[[re.Match[str]], str]:
    def replacement(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        if match[0] == "${":
            problems.append(
                ConfigProblem(path, "'${' is not closed by '}', as in ${NAME:-default}; write $${ for a plain ${")
            )
            return ""
        name, default = match["name"], match["default"]
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            problems.append(ConfigProblem(path, f"{match[0]!r} names no variable; write $${{ for a plain ${{"))
        elif environ.get(name):
            return environ[name]
        elif default is not None:
            return default[2:]
        else:
            problems.append(
                ConfigProblem(path, f"environment variable {name} is not set and has no default (${{{name}:-…}})")
            )
        return ""

    return replacement
