"""`klamm audit`: counts by topic, window and tier, with completeness."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from klamm.core.cli.options import DEFAULT_CONFIG, ConfigFile, console
from klamm.core.client.cluster_client import ClusterClient
from klamm.core.config.settings import load_settings
from klamm.core.errors import ConfigError
from klamm.core.process_log import of_command
from klamm.plugins.audit.config import AuditConfig, expected_tier
from klamm.plugins.audit.event import TIERS
from klamm.plugins.audit.question import Answer, Question, ask, audit_config, check_topics, settle
from klamm.plugins.audit.report import as_json, print_report
from klamm.plugins.audit.tiling import TierKey
from klamm.plugins.audit.windows import Span, parse_instant

WAIT_STEP_S = 0.5

app = typer.Typer(add_completion=False, no_args_is_help=False)


@app.callback(invoke_without_command=True)
def audit_command(
    context: typer.Context,
    config: ConfigFile = DEFAULT_CONFIG,
    topic: Annotated[list[str] | None, typer.Option("--topic", help="Only this topic; may be repeated.")] = None,
    tier: Annotated[
        list[str] | None,
        typer.Option(
            "--tier",
            help="Only this tier: producer, broker, consumer, consumer/GROUP, hadoop or hadoop/SINK",
        ),
    ] = None,
    by: Annotated[Span, typer.Option("--by", help="How windows are grouped.")] = Span.WINDOW,
    since: Annotated[str, typer.Option(help="Only windows from this date or time (ISO 8601, UTC).")] = "",
    until: Annotated[str, typer.Option(help="Only windows before this date or time.")] = "",
    expect: Annotated[
        list[str] | None, typer.Option("--expect", help="A tier that must have counted: consumer/GROUP, hadoop/SINK.")
    ] = None,
    wait: Annotated[float, typer.Option(help="Ask again for so many seconds until everything is complete.")] = 0.0,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare what producers, broker, consumers and loads have counted.

    Exit status 1 when a record is missing, doubled or its count is unknown.
    """
    if context.invoked_subcommand is not None:
        return
    settings = load_settings(config)
    of_command(settings.log)
    audit = audit_config(settings)
    question = Question(
        tuple(topic or ()),
        tuple(map(_known, tier or ())),
        tuple(map(_expected, expect or ())),
        _instant("--since", since),
        _instant("--until", until),
    )
    servers = settings.producer.bootstrap_servers
    with ClusterClient(servers, codecs=settings.codec_table(), client_id="klamm-audit") as client:
        answer = _ask_until(client, audit, question, wait)
    if json_:
        typer.echo(json.dumps(as_json(answer.audits, by, answer.unreadable), indent=1))
    else:
        print_report(console(), answer.audits, by, answer.unreadable)
    if not answer.complete:
        raise typer.Exit(1)


@app.command("settle")
def settle_command(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Whose counts.")],
    who: Annotated[str, typer.Option("--who", help="Who settles it.")],
    why: Annotated[str, typer.Option("--why", help="Why these counts are taken as complete.")],
    config: ConfigFile = DEFAULT_CONFIG,
    tier: Annotated[list[str] | None, typer.Option("--tier", help="Only this tier; may be repeated.")] = None,
    since: Annotated[str, typer.Option(help="Only windows from this date or time (ISO 8601, UTC).")] = "",
    until: Annotated[str, typer.Option(help="Only windows before this date or time.")] = "",
    expect: Annotated[list[str] | None, typer.Option("--expect", help="As for klamm audit.")] = None,
) -> None:
    """Settle counts that are unknown and stay so: an event in the audit topic says who did, and why.

    A count that is missing or doubled is proved, and not settled. A settled count that changes is unknown again.
    """
    for option, text in (("--who", who), ("--why", why)):
        if not text.strip():
            raise ConfigError(f"{option}: expected a text that is not empty")
    settings = load_settings(config)
    of_command(settings.log)
    audit = audit_config(settings)
    span = (_instant("--since", since), _instant("--until", until))
    question = Question((topic,), tuple(map(_known, tier or ())), tuple(map(_expected, expect or ())), *span)
    servers = settings.producer.bootstrap_servers
    with ClusterClient(servers, codecs=settings.codec_table(), client_id="klamm-audit") as client:
        counts, windows = settle(client, audit, question, who.strip(), why.strip())
    typer.echo(f"settled {counts} counts in {windows} windows of topic {topic}")


def _ask_until(client: ClusterClient, config: AuditConfig, question: Question, wait_s: float) -> Answer:
    deadline = time.monotonic() + wait_s
    while True:
        answer = ask(client, config, question)
        check_topics(client, question, answer)
        if answer.complete or time.monotonic() >= deadline:
            return answer
        time.sleep(WAIT_STEP_S)


def _known(text: str) -> str:
    if text.partition("/")[0] not in TIERS:
        known = "producer, broker, consumer, consumer/GROUP, hadoop or hadoop/SINK"
        raise ConfigError(f"--tier: expected {known}, got {text!r}")
    return text


def _expected(text: str) -> TierKey:
    try:
        return TierKey(*expected_tier(text))
    except ValueError as error:
        raise ConfigError(f"--expect: {error}") from error


def _instant(option: str, text: str) -> int | None:
    try:
        return parse_instant(text) if text else None
    except ValueError as error:
        raise ConfigError(f"{option}: expected a date or time in ISO 8601, got {text!r}") from error
