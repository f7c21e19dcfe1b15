"""Reads a YAML document: refuses duplicate keys, substitutes environment variables, and keeps the line of each key."""

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
_VARIABLE = re.compile(r"\$\$\{|\$\{(?P<name>[^}:]*)(?P<default>:-[^}]*)?\}|\$\{")


@dataclass
class Document:
    """`tree` has dicts, lists and scalars; `lines` gives each key's line, from 1; `name` is put before each problem."""

    name: str
    base_dir: Path
    tree: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[ConfigProblem] = field(default_factory=list)

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
    return document


def _construct(loader: yaml.SafeLoader, node: yaml.Node, path: KeyPath, document: Document) -> Any:
    """Builds the tree. PyYAML's own constructor takes the last of two equal keys and drops line numbers."""
    if len(path) > MAX_DEPTH:
        raise yaml.MarkedYAMLError(problem="nested too deep", problem_mark=node.start_mark)
    if isinstance(node, yaml.SequenceNode):
        return [_construct(loader, item, (*path, i), document) for i, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return _scalar(loader, node)
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


def _scalar(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
    """Converts a scalar. PyYAML does not catch the errors of its conversions: `2020-99-01` looks like a date, `!!int x`
    like a number."""
    try:
        return loader.construct_object(node)
    except (ValueError, LookupError, ArithmeticError, AttributeError) as error:
        problem = f"{node.value!r} is not a valid {node.tag.rpartition(':')[2]}; put it in quotes if it is text"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from error


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
