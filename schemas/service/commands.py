"""`klamm schemas`: the operations of a registry's endpoints, carried out on the topic itself: no registry needs to
run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.core.cli.options import DEFAULT_CONFIG, Bootstrap, ConfigFile, settings_and_client
from klamm.core.cli.output import Json, say, say_document, say_json, say_rows
from klamm.core.errors import ConfigError

from .query import Query

if TYPE_CHECKING:
    from ..store.schema_store import SchemaVersion
    from .api import RegistryApi
    from .topic import SchemaTopic

app = typer.Typer(
    help="The schemas of a cluster: list, show, register, check, compare, delete, export and import.",
    no_args_is_help=True,
)
Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help="TOPIC-value or TOPIC-key; :.CONTEXT:NAME.")]
Kind = Annotated[str, typer.Option("--type", help="AVRO, JSON or PROTOBUF.")]
SchemaFile = Annotated[Path, typer.Argument(metavar="FILE", help="The schema's text; - is stdin.")]
References = Annotated[
    list[str] | None,
    typer.Option("--reference", metavar="NAME=SUBJECT:VERSION", help="A type or file of another subject; repeated."),
]


@contextmanager
def _opened(config: Path, bootstrap: str | None) -> Iterator[tuple[RegistryApi, SchemaTopic]]:
    """Yields the registry on the topic that the file names, read to its end."""
    from ..registry.log import kept_ids
    from .api import RegistryApi
    from .config import registry_config
    from .topic import SchemaTopic

    with (
        settings_and_client(config, bootstrap) as (settings, client),
        closing(settings.make_coordination()) as coordination,
    ):
        coordination.start()
        options = registry_config(settings)
        topic = SchemaTopic(client, options.kafkastore_topic, last_ids=kept_ids(coordination))
        topic.catch_up()
        yield RegistryApi(topic, options), topic


def _read(file: Path) -> str:
    if str(file) == "-":
        return sys.stdin.read()
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from error


def _body(file: Path, kind: str, references: list[str] | None) -> dict[str, Any]:
    made = []
    for text in references or ():
        name, equals, rest = text.partition("=")
        subject, colon, version = rest.rpartition(":")
        if not (equals and colon and version.isdigit()):
            raise ConfigError(f"--reference {text}: expected NAME=SUBJECT:VERSION")
        made.append({"name": name, "subject": subject, "version": int(version)})
    return {"schema": _read(file), "schemaType": kind, "references": made}


@app.command("list")
def list_command(
    prefix: Annotated[str, typer.Option("--prefix", help="Only subjects that begin so.")] = ":*:",
    deleted: Annotated[bool, typer.Option("--deleted", help="Deleted versions too.")] = False,
    as_json: Json = False,
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
) -> None:
    """List the subjects: their versions, the newest id, and their level of compatibility."""
    from ..store.schema_store import Which

    which = Which.ALL if deleted else Which.LIVE
    with _opened(config, bootstrap) as (api, topic), topic.store() as store:
        rows = []
        for name in store.subjects(prefix, which):
            versions = store.versions(name, which)
            newest = versions[-1]
            rows.append(
                {
                    "subject": name,
                    "versions": _ranges(versions),
                    "id": newest.schema_id,
                    "type": newest.schema.schema_type,
                    "compatibility": api.level(store, name),
                    "mode": store.mode_in_scope(name),
                }
            )
        stray = store.stray()
    say_rows(("subject", "versions", "id", "type", "compatibility", "mode"), rows, as_json)
    for record in stray[-10:]:
        say(f"klamm: a record of the topic is passed over: {record}", err=True)


def _ranges(versions: list[SchemaVersion]) -> str:
    """Returns `1-3,5`."""
    found: list[list[int]] = []
    for version in versions:
        if found and found[-1][-1] == version.version - 1:
            found[-1].append(version.version)
        else:
            found.append([version.version])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in found)


@app.command()
def show(
    subject: Annotated[str, typer.Argument(metavar="[SUBJECT]")] = "",
    version: Annotated[str, typer.Argument(metavar="[VERSION]", help="A number, or latest.")] = "latest",
    schema_id: Annotated[int | None, typer.Option("--id", min=1, help="The schema with this id instead.")] = None,
    as_json: Json = False,
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
) -> None:
    """Print a schema's text; with --json all that the registry knows of it."""
    if not subject and schema_id is None:
        raise ConfigError("name a SUBJECT, or an id with --id")
    with _opened(config, bootstrap) as (api, _):
        if schema_id is not None:
            found = api.by_id(str(schema_id), Query())
        else:
            found = api.version(subject, version, Query(b"deleted=true" if version != "latest" else b""))
    if as_json:
        say_json(found)
    else:
        say_document(found["schema"])


@app.command()
def register(
    subject: Subject,
    file: SchemaFile,
    kind: Kind = "AVRO",
    reference: References = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Store the normalized text.")] = False,
    as_json: Json = False,
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
) -> None:
    """Register a schema as a subject's new version, or find the version that it is."""
    with _opened(config, bootstrap) as (api, _):
        body = _body(file, kind, reference)
        made = api.register(subject, Query(b"normalize=true" if normalize else b""), body)
    if as_json:
        say_json(made)
    else:
        say(f"{subject}: version {made['version']}, id {made['id']}")


@app.command()
def check(
    subject: Subject,
    file: SchemaFile,
    kind: Kind = "AVRO",
    reference: References = None,
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
) -> None:
    """Check whether a schema may be the subject's next version; the exit status is 1 if it may not."""
    with _opened(config, bootstrap) as (api, _):
        body = _body(file, kind, reference)
        answer = api.compare_with_all(subject, Query(b"verbose=true"), body)
    for message in answer["messages"]:
        say(message)
    if not answer["is_compatible"]:
        raise typer.Exit(1)
    say(f"{subject}: compatible")


@app.command()
def diff(
    subject: Subject,
    old: Annotated[str, typer.Argument(metavar="OLD", help="A version.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="A version, or latest.")] = "latest",
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
) -> None:
    """Show how two versions differ: whether each reads the data of the other, and the lines of their texts."""
    import difflib
    import json

    with _opened(config, bootstrap) as (api, _):
        query = Query(b"deleted=true")
        texts = [api.version(subject, version, query) for version in (old, new)]
        reads = api.reads(subject, old, new)
    for title, problems in zip(("new reads old", "old reads new"), reads, strict=True):
        say(f"{title}: {'yes' if not problems else 'no'}")
        for problem in problems:
            say(f"  {problem}")

    def lines(found: dict[str, Any]) -> list[str]:
        text = str(found["schema"])
        if found["schemaType"] != "PROTOBUF":
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        return text.splitlines()

    names = [f"{subject} version {found['version']}" for found in texts]
    before, after = map(lines, texts)
    for line in difflib.unified_diff(before, after, names[0], names[1], lineterm=""):
        say(line)


@app.command()
def delete(
    subject: Subject,
    version: Annotated[str, typer.Argument(metavar="[VERSION]", help="A number, or latest; all if not given.")] = "",
    permanent: Annotated[
        bool, typer.Option("--permanent", help="Remove for good what was deleted before: no consumer reads its data.")
    ] = False,
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
) -> None:
    """Delete a version, or a subject with all of its versions. Its ids still resolve unless it is deleted with
    --permanent."""
    query = Query(b"permanent=true" if permanent else b"")
    with _opened(config, bootstrap) as (api, _):
        numbers = [api.delete_version(subject, version, query)] if version else api.delete_subject(subject, query)
    say(f"{subject}: version{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))} deleted")


@app.command("config")
def config_command(
    subject: Annotated[str, typer.Argument(metavar="[SUBJECT]", help="All subjects if not given.")] = "",
    level: Annotated[str | None, typer.Option("--level", help="The level of compatibility to set.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove what is set.")] = False,
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
) -> None:
    """Print or set the level of compatibility: BACKWARD, FORWARD, FULL, each _TRANSITIVE, or NONE."""
    scope = subject or None
    with _opened(config, bootstrap) as (api, _):
        if remove:
            api.delete_config(scope, Query())
        elif level is not None:
            api.set_config(scope, Query(), {"compatibility": level})
        say_json(api.config(scope, Query(b"defaultToGlobal=true")))


@app.command()
def mode(
    subject: Annotated[str, typer.Argument(metavar="[SUBJECT]", help="All subjects if not given.")] = "",
    to: Annotated[str | None, typer.Option("--set", metavar="MODE", help="READWRITE, READONLY or IMPORT.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove what is set.")] = False,
    force: Annotated[bool, typer.Option("--force", help="IMPORT although there are versions.")] = False,
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
) -> None:
    """Print or set the mode, which decides what may be written."""
    scope = subject or None
    with _opened(config, bootstrap) as (api, _):
        if remove:
            api.delete_mode(scope, Query())
        elif to is not None:
            api.set_mode(scope, Query(b"force=true" if force else b""), {"mode": to})
        say_json(api.mode(scope, Query(b"defaultToGlobal=true")))


@app.command()
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A line of JSON for each record; - is stdout.")],
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
) -> None:
    """Write all schemas, deleted ones too, with their ids, configurations and modes to a file."""
    import io

    from .transfer import dump

    made = io.StringIO()
    with _opened(config, bootstrap) as (_, topic), topic.store() as store:
        count = dump(store, made)
    if str(file) == "-":
        say_document(made.getvalue())
        return
    try:
        file.write_text(made.getvalue(), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}") from error
    say(f"{file}: {count} records")


@app.command("import")
def import_command(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="http://HOST:PORT of a registry, or a dump's file.")],
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
) -> None:
    """Take over all schemas of another registry, or of a dump, with their ids. It may be repeated."""
    from .transfer import import_store, of_registry, read_dump

    with _opened(config, bootstrap) as (_, topic):
        is_url = source.startswith(("http://", "https://"))
        given = of_registry(source) if is_url else read_dump(_read(Path(source)).split("\n"), source)
        appended, there = import_store(topic, given)
    say(f"{appended} records imported, {there} were there")
