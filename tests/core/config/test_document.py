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
        ("a: 0x_\n", "klamm.yaml:1: not YAML: '0x_' is not a valid int; put it in quotes if it is text"),
        ("a: [-0b_]\n", "klamm.yaml:1: not YAML: '-0b_' is not a valid int"),
        (f"a: 0{'9' * 5000}\n", "is not a valid str; put it in quotes if it is text"),
        ("a: !!int x\n", "klamm.yaml:1: not YAML: 'x' is not a valid int"),
        ("a: !!int ''\n", "klamm.yaml:1: not YAML: '' is not a valid int"),
        ("a: !!bool x\n", "klamm.yaml:1: not YAML: 'x' is not a valid bool"),
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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("010", "010 is 8 to YAML 1.1 and 10 to YAML 1.2: write 10 or 8, or '010' if it is text"),
        ("-017", "-017 is -15 to YAML 1.1 and -17 to YAML 1.2: write -17 or -15, or '-017' if it is text"),
        ("08", "08 is text to YAML 1.1 and 8 to YAML 1.2: write 8, or '08' if it is text"),
        ("0o10", "0o10 is text to YAML 1.1 and 8 to YAML 1.2: write 8, or '0o10' if it is text"),
        ("0b11", "0b11 is 3 to YAML 1.1 and text to YAML 1.2: write 3, or '0b11' if it is text"),
        ("22:30", "22:30 is 1350 to YAML 1.1 and text to YAML 1.2: write 1350, or '22:30' if it is text"),
        ("1:30.5", "1:30.5 is 90.5 to YAML 1.1 and text to YAML 1.2: write 90.5, or '1:30.5' if it is text"),
        ("1_000", "1_000 is 1000 to YAML 1.1 and text to YAML 1.2: write 1000, or '1_000' if it is text"),
        ("1_0.5", "1_0.5 is 10.5 to YAML 1.1 and text to YAML 1.2: write 10.5, or '1_0.5' if it is text"),
        ("0x1_0", "0x1_0 is 16 to YAML 1.1 and text to YAML 1.2: write 16, or '0x1_0' if it is text"),
        ("1e3", "1e3 is text to YAML 1.1 and 1000 to YAML 1.2: write 1000, or '1e3' if it is text"),
        ("1.5e3", "1.5e3 is text to YAML 1.1 and 1500 to YAML 1.2: write 1500, or '1.5e3' if it is text"),
        ("-.5", "-.5 is text to YAML 1.1 and -0.5 to YAML 1.2: write -0.5, or '-.5' if it is text"),
        ("yes", "yes is true to YAML 1.1 and text to YAML 1.2: write true, or 'yes' if it is text"),
        ("NO", "NO is false to YAML 1.1 and text to YAML 1.2: write false, or 'NO' if it is text"),
        ("on", "on is true to YAML 1.1 and text to YAML 1.2: write true, or 'on' if it is text"),
        ("Off", "Off is false to YAML 1.1 and text to YAML 1.2: write false, or 'Off' if it is text"),
        (".nan", ".nan is not a number: write a number, or '.nan' if it is text"),
        ("!!int 010", "010 is 8 to YAML 1.1 and 10 to YAML 1.2: write 10 or 8, or '010' if it is text"),
    ],
)
def test_a_value_that_yaml_1_1_and_1_2_read_differently_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(write(tmp_path, f"a: 1\nb:\n  c: {text}\nd: [1, {text}]\n"), {})
    assert str(caught.value) == f"klamm.yaml:3: b.c: {words}\nklamm.yaml:4: d.1: {words}"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0), ("10", 10), ("-10", -10), ("+10", 10), ("0x1F", 31), ("'010'", "010"), ('"yes"', "yes"),
        ("true", True), ("False", False), ("~", None), ("null", None), ("y", "y"), ("n", "n"), ("0.5", 0.5),
        ("1.", 1.0), (".5", 0.5), ("1.0e+3", 1000.0), (".inf", float("inf")), ("2020-01-01", "2020-01-01"),
        ("2020-99-01", "2020-99-01"), ("2020-01-01 10:00:00", "2020-01-01 10:00:00"), ("=", "="), ("a:1", "a:1"),
        ("00", 0), ("07", 7), ("09.5", 9.5),
        ("127.0.0.1:9092", "127.0.0.1:9092"), ("!!str 010", "010"), ("|\n  010", "010\n"),
    ],
)  # fmt: skip
def test_values_that_both_versions_read_alike(tmp_path: Path, text: str, value: object) -> None:
    [(key, found)] = read(write(tmp_path, f"a: {text}\n"), {}).tree.items()
    assert (key, found) == ("a", value)
    assert isinstance(found, type(value))


def test_a_decimal_number_keeps_its_text_for_keys_of_text(tmp_path: Path) -> None:
    assert str(read(write(tmp_path, "a: 1.10\n"), {}).tree["a"]) == "1.10"


@pytest.mark.parametrize("key", ["010", "yes", "22:30", "1e3"])
def test_a_key_is_text(tmp_path: Path, key: str) -> None:
    assert read(write(tmp_path, f"{key}: 1\n"), {}).tree == {key: 1}


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
