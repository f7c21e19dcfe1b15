"""`klamm schemas` on a topic that no registry serves."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from klamm.core.cli.main import main
from klammtest.broker import RunningBroker
from klammtest.registry import RunningRegistry
from klammtest.registry_front import registry_front

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
        (["import", "http://127.0.0.1:port"], "klamm: http://127.0.0.1:port/config: no registry answers: "),
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


KEY = '{{"keytype":"SCHEMA","subject":"{}","version":{},"magic":1}}'
CONFLUENT = [
    ('{"keytype":"NOOP","magic":0}', None),
    ('{"keytype":"CONFIG","subject":null,"magic":0}', '{"compatibilityLevel":"FULL"}'),
    ('{"keytype":"CONTEXT","tenant":"default","context":".empty"}', '{"tenant":"default","context":".empty"}'),
    (KEY.format("a", 1), '{"subject":"a","version":1,"id":4,"schema":"\\"int\\"","deleted":false}'),
    (KEY.format("a", 2), '{"subject":"a","version":2,"id":5,"md5":"eA==","schema":"\\"long\\"","deleted":false}'),
    ('{"keytype":"DELETE_SUBJECT","subject":"a","magic":0}', '{"subject":"a","version":2}'),
    (KEY.format("a", 3), '{"subject":"a","version":3,"id":6,"schema":"\\"double\\"","deleted":false}'),
    (KEY.format("b", 1), '{"subject":"b","version":1,"id":9,"schema":"\\"float\\"","deleted":true}'),
    (KEY.format("b", 1), None),
    (KEY.format("c", 1), '{"subject":"c","version":1,"id":7,"schema":"\\"bytes\\"","deleted":true}'),
    ('{"keytype":"CLEAR_SUBJECT","subject":"c","magic":0}', '{"subject":"c"}'),
    ('{"keytype":"MODE","subject":"a","magic":0}', '{"subject":"a","mode":"READONLY"}'),
    ('{"keytype":"MODE","subject":"a","magic":0}', None),
]
"""A topic that Confluent's registry wrote. The id 9 was removed."""


@pytest.mark.parametrize("tool", ["dump", "kcat", "console"])
def test_a_dump_of_a_topic_that_confluents_registry_wrote(schemas: Schemas, tmp_path: Path, tool: str) -> None:
    lines = {
        "dump": [json.dumps({"key": key, "value": value}) for key, value in CONFLUENT],
        "kcat": [json.dumps({"topic": "_schemas", "key": key, "payload": value}) for key, value in CONFLUENT],
        "console": [f"{key}\t{value or 'null'}" for key, value in CONFLUENT],
    }
    file, one, topic = tmp_path / "dump.jsonl", tmp_path / "one.avsc", f"from-{tool}"
    file.write_text("\n".join(lines[tool]))
    one.write_text(ONE)
    status, out, _ = schemas("import", str(file), topic=topic)
    assert (status, out) == (0, "7 records imported, 0 were there\n")
    assert schemas("import", str(file), topic=topic)[1] == "0 records imported, 7 were there\n"
    rows = [json.loads(row) for row in schemas("list", "--deleted", "--json", topic=topic)[1].splitlines()]
    assert [(row["subject"], row["versions"], row["compatibility"]) for row in rows] == [("a", "1-3", "FULL")]
    assert [json.loads(schemas("show", "a", str(number), "--json", topic=topic)[1])["id"] for number in (1, 2, 3)] == [
        4, 5, 6,
    ]  # fmt: skip
    assert schemas("show", "a", topic=topic)[1] == '"double"\n'
    assert schemas("export", str(file), topic=topic)[1] == f"{file}: 7 records\n"
    assert ".empty" in file.read_text()
    assert schemas("register", "b", str(one), topic=topic)[1] == "b: version 1, id 10\n", "9 is not given again"
    assert schemas("import", str(file), topic=f"{topic}-again")[0] == 0
    assert schemas("register", "b", str(one), topic=f"{topic}-again")[1] == "b: version 1, id 10\n"


def test_a_dump_may_have_any_text(schemas: Schemas, tmp_path: Path) -> None:
    one, file = tmp_path / "one.avsc", tmp_path / "dump.jsonl"
    one.write_text(json.dumps({"type": "enum", "name": "E", "symbols": ["A"], "doc": "\u2028 \u0085 \x1c \x0b \r\n"}))
    schemas("register", "lines", str(one), topic="lines")
    schemas("export", str(file), topic="lines")
    assert schemas("import", str(file), topic="lines-again") == (0, "1 records imported, 0 were there\n", "")
    shown = [schemas("show", "lines", topic=topic)[1] for topic in ("lines", "lines-again")]
    assert shown[0] == shown[1]


def test_a_dump_in_which_an_id_has_two_schemas(schemas: Schemas, tmp_path: Path) -> None:
    file = tmp_path / "dump.jsonl"
    other = (KEY.format("d", 1), '{"subject":"d","version":1,"id":4,"schema":"\\"bytes\\"","deleted":false}')
    file.write_text("\n".join(f"{key}\t{value or 'null'}" for key, value in [*CONFLUENT, other]))
    status, _, err = schemas("import", str(file), topic="twice")
    assert status == 1
    assert err == (
        f"klamm: {file}, line 14: no record of a schemas topic: d, version 1: its id 4 is that of another schema, "
        "version 1 of a\n"
    )
    assert schemas("list", "--json", topic="twice")[1] == "", "nothing was imported"


@pytest.mark.parametrize("answer", [(200, [1]), (200, {"compatibilityLevel": 7}), (200, {"mode": 1}), (404, {})])
def test_what_is_no_registry_is_one_line(schemas: Schemas, answer: tuple[int, Any]) -> None:
    with registry_front(lambda *_: answer) as front:
        status, _, err = schemas("import", front.url, topic="none")
    assert (status, err.count("\n")) == (1, 1)
    assert err.startswith(f"klamm: {front.url}: it does not answer as a schema registry: ")


def test_a_broker_is_no_registry(schemas: Schemas, broker: RunningBroker) -> None:
    status, _, err = schemas("import", f"http://{broker.bootstrap}", topic="none")
    assert (status, err.count("\n"), "no registry answers" in err) == (1, 1, True)


def test_what_another_registry_has_for_contexts_and_removed_ids(
    schemas: Schemas, registry: RunningRegistry, subject: str, tmp_path: Path
) -> None:
    context, one = f".c-{subject}", tmp_path / "one.avsc"
    one.write_text(ONE)
    for kind in ("int", "long"):
        last = registry.register(f":{context}:{kind}", f'"{kind}"').body["id"]
    registry.delete(f"/subjects/:{context}:long")
    registry.delete(f"/subjects/:{context}:long?permanent=true")
    registry.put(f"/config/:{context}:", {"compatibility": "FULL_TRANSITIVE"})
    registry.put(f"/mode/:{context}:", {"mode": "READONLY"})
    topic = f"copy-{subject}"
    assert schemas("import", registry.url, topic=topic)[0] == 0
    assert schemas("config", f":{context}:", topic=topic)[1] == '{"compatibilityLevel": "FULL_TRANSITIVE"}\n'
    assert schemas("mode", f":{context}:", "--remove", topic=topic)[0] == 0
    assert schemas("register", f":{context}:b", str(one), topic=topic)[1].endswith(f" id {last + 1}\n")
