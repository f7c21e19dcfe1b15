"""`klamm schemas` on a topic that no registry serves."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from klamm.core.cli.main import main
from klammtest.broker import RunningBroker
from klammtest.registry import RunningRegistry

ONE = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'
TWO = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "int"}]}'

Schemas = Callable[..., tuple[int, str, str]]


@pytest.fixture
def schemas(
    broker: RunningBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Schemas:
    """Runs `klamm schemas …`: status, stdout, stderr."""
    file = tmp_path / "klamm.yaml"

    def run(*arguments: str, topic: str = "_schemas") -> tuple[int, str, str]:
        file.write_text(
            f"coordination: {{plugin: embedded, path: {tmp_path / topic}.db}}\n"
            f"broker: {{services: [{{plugin: registry, kafkastore.topic: {topic}}}]}}\n"
        )
        given = ["klamm", "schemas", *arguments, "-c", str(file), "-b", broker.bootstrap]
        monkeypatch.setattr(sys, "argv", given)
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return int(left.value.code or 0), out, err

    return run


def test_from_register_to_delete(schemas: Schemas, subject: str, tmp_path: Path) -> None:
    one, two = tmp_path / "one.avsc", tmp_path / "two.avsc"
    one.write_text(ONE)
    two.write_text(TWO)
    status, out, _ = schemas("register", subject, str(one))
    assert (status, out.startswith(f"{subject}: version 1, id ")) == (0, True)
    status, out, _ = schemas("check", subject, str(two))
    assert (status, "READER_FIELD_MISSING_DEFAULT_VALUE" in out) == (1, True)
    status, _, err = schemas("register", subject, str(two))
    assert (status, err.startswith("klamm: Schema being registered is incompatible")) == (1, True)
    assert schemas("config", subject, "--level", "forward")[1] == '{"compatibilityLevel": "FORWARD"}\n'
    assert schemas("check", subject, str(two))[:2] == (0, f"{subject}: compatible\n")
    assert json.loads(schemas("register", subject, str(two), "--json")[1])["version"] == 2
    row = json.loads(schemas("list", "--prefix", subject, "--json")[1])
    assert (row["versions"], row["type"], row["compatibility"], row["mode"]) == ("1-2", "AVRO", "FORWARD", "READWRITE")
    assert json.loads(schemas("show", subject)[1]) == json.loads(TWO)
    assert json.loads(schemas("show", "--id", str(row["id"]))[1]) == json.loads(TWO)
    out = schemas("diff", subject, "1")[1]
    assert out.startswith("new reads old: no\n  {errorType:'READER_FIELD_MISSING_DEFAULT_VALUE'")
    assert "old reads new: yes\n" in out
    assert '+      "name": "b",' in out
    assert schemas("mode", subject, "--set", "readonly")[1] == '{"mode": "READONLY"}\n'
    assert schemas("delete", subject)[0] == 1
    assert schemas("mode", subject, "--remove")[1] == '{"mode": "READWRITE"}\n'
    assert schemas("delete", subject, "1")[1] == f"{subject}: version 1 deleted\n"
    assert schemas("delete", subject)[1] == f"{subject}: version 2 deleted\n"
    assert schemas("delete", subject, "--permanent")[1] == f"{subject}: versions 1, 2 deleted\n"


def test_export_and_import(schemas: Schemas, registry: RunningRegistry, subject: str, tmp_path: Path) -> None:
    registry.register(f"{subject}-inner", '{"type":"record","name":"Inner","fields":[]}')
    reference = {"name": "Inner", "subject": f"{subject}-inner", "version": 1}
    registry.register(subject, '{"type":"array","items":"Inner"}', references=[reference])
    registry.put(f"/config/{subject}", {"compatibility": "NONE"})
    registry.register(subject, '"int"')
    registry.delete(f"/subjects/{subject}/versions/2")
    file = tmp_path / "dump.jsonl"
    status, out, _ = schemas("export", str(file))
    lines = file.read_text().splitlines()
    assert (status, out) == (0, f"{file}: {len(lines)} records\n")
    assert schemas("import", str(file))[1] == f"0 records imported, {len(lines)} were there\n"
    for source in (str(file), registry.url):
        copy = f"copy-{subject}-{len(source)}"
        assert schemas("import", source, topic=copy)[0] == 0
        copied = {json.loads(row)["subject"]: row for row in schemas("list", "--json", topic=copy)[1].splitlines()}
        assert copied == {json.loads(row)["subject"]: row for row in schemas("list", "--json")[1].splitlines()}
        shown = json.loads(schemas("show", subject, "2", "--json", topic=copy)[1])
        assert (shown["deleted"], shown["id"]) == (
            True,
            registry.get(f"/subjects/{subject}/versions/2?deleted=true").body["id"],
        )
        again = schemas("import", source, topic=copy)[1]
        assert again.startswith("0 records imported"), "it may be repeated"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["show"], "klamm: name a SUBJECT, or an id with --id"),
        (["show", "nobody"], "klamm: Subject 'nobody' not found."),
        (["show", "--id", "999999"], "klamm: Schema 999999 not found"),
        (["register", "s", "missing.avsc"], "klamm: missing.avsc: cannot be read"),
        (["register", "s", "-", "--reference", "x"], "klamm: --reference x: expected NAME=SUBJECT:VERSION"),
        (["delete", "nobody"], "klamm: Subject 'nobody' not found."),
        (["config", "--level", "SOMETIMES"], "klamm: Invalid compatibility level."),
        (["mode", "--set", "SOMETIMES"], "klamm: Invalid mode."),
        (["import", "http://127.0.0.1:1"], "klamm: http://127.0.0.1:1/config: no registry answers: "),
        (["import", "missing.jsonl"], "klamm: missing.jsonl: cannot be read"),
    ],
)
def test_what_is_wrong_is_one_line(schemas: Schemas, arguments: list[str], line: str) -> None:
    status, _, err = schemas(*arguments)
    assert status != 0
    assert err.startswith(line)
    assert err.count("\n") == 1


def test_a_wrong_dump_names_its_line(schemas: Schemas, tmp_path: Path) -> None:
    file = tmp_path / "dump.jsonl"
    file.write_text('{"key": "{\\"keytype\\":\\"NOOP\\",\\"magic\\":0}", "value": null}\n{"key": 1}\n')
    status, _, err = schemas("import", str(file))
    assert (status, err) == (1, f"klamm: {file}, line 2: no record of a schemas topic: 'value' is missing\n")
