"""YAML as written: duplicates, variables, lines, and files that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from klamm.core.config.document import read
from klamm.core.errors import ConfigError


def write(folder: Path, text: str) -> Path:
    path = folder / "klamm.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_lines_are_remembered_also_in_lists_and_flow(tmp_path: Path) -> None:
    document = read(write(tmp_path, "a:\n  b: 1\n  c: {d: 2,\n      e: 3}\n  f:\n    - g: 4\n"), {})
    assert document.tree == {"a": {"b": 1, "c": {"d": 2, "e": 3}, "f": [{"g": 4}]}}
    assert {".".join(map(str, path)): line for path, line in document.lines.items()} == {
        "a": 1, "a.b": 2, "a.c": 3, "a.c.d": 3, "a.c.e": 4, "a.f": 5, "a.f.0.g": 6,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "environ", "value"),
    [
        ("${A}", {"A": "x"}, "x"),
        ("${A:-d}", {}, "d"),
        ("${A:-d}", {"A": ""}, "d"),
        ("${A:-d}", {"A": "x"}, "x"),
        ("${A:-}", {}, ""),
        ("h:${P:-1}/c", {"P": "2"}, "h:2/c"),
        ("$${A}", {"A": "x"}, "${A}"),
        ("$A $5", {"A": "x"}, "$A $5"),
    ],
)
def test_variables(text: str, environ: dict[str, str], value: str) -> None:
    document = read({"a": {"b": [text]}}, environ)
    assert (document.tree, document.problems) == ({"a": {"b": [value]}}, [])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("${NOPE}", "a.b: environment variable NOPE is not set and has no default"),
        ("${}", "a.b: '${}' names no variable"),
        ("${a b}", "a.b: '${a b}' names no variable"),
        ("x/${HOME", "a.b: '${' is not closed by '}'"),
    ],
)
def test_a_variable_that_cannot_be_filled_in_names_itself_and_the_key(text: str, words: str) -> None:
    (problem,) = read({"a": {"b": text}}, {}).problems
    assert words in str(problem)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", "klamm.yaml:3: not YAML: a is given twice, first on line 1"),
        ("a:\n  b: 1\n  b: 1\n", "klamm.yaml:3: not YAML: a.b is given twice, first on line 2"),
        ("a: [1\n", "klamm.yaml:2: not YAML: "),
        ("a: 'x\n", "klamm.yaml:2: not YAML: "),
        ("? [a]\n: 1\n", "klamm.yaml:1: not YAML: a key should be plain text"),
        ("a: &x {b: 1}\nc: {<<: *x}\n", "klamm.yaml:2: not YAML: a key should be plain text (`<<` is not supported"),
        ("a: !!python/object:os.system x\n", "klamm.yaml:1: not YAML: could not determine a constructor"),
        ("a: 1\n---\nb: 1\n", "klamm.yaml:2: not YAML: "),
        ("a: 1\nb: 2020-99-01\n", "klamm.yaml:2: not YAML: '2020-99-01' is not a valid timestamp; put it in quotes"),
        ("a: !!int x\n", "klamm.yaml:1: not YAML: 'x' is not a valid int"),
        ("a: !!int ''\n", "klamm.yaml:1: not YAML: '' is not a valid int"),
        ("a: !!bool x\n", "klamm.yaml:1: not YAML: 'x' is not a valid bool"),
        ("a: !!timestamp x\n", "klamm.yaml:1: not YAML: 'x' is not a valid timestamp"),
        ("[" * 200, "klamm.yaml:"),
        ("a: " + "[" * 50 + "]" * 50, "klamm.yaml:1: not YAML: nested too deep"),
        ("[" * 100_000, "klamm.yaml: not YAML: nested too deep"),
        ("a: \x00", "klamm.yaml: not YAML: "),
        ("a: x" * 400_000, "klamm.yaml: is larger than"),
    ],
)
def test_what_is_no_yaml_is_one_line_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(write(tmp_path, text), {})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nope.yaml: no such file; `klamm init` writes one"):
        read(tmp_path / "nope.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read(tmp_path)
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"a: \xff")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        read(path)


def test_an_empty_file_has_no_sections(tmp_path: Path) -> None:
    assert read(write(tmp_path, "# nothing\n")).tree == {}


@pytest.mark.parametrize("source", [None, 5, ["a"], b"klamm.yaml"])
def test_what_is_no_configuration(source: object) -> None:
    with pytest.raises(ConfigError, match="a configuration is a file's path or a mapping of the same shape, not"):
        read(source)  # type: ignore[arg-type]
