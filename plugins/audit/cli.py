"""`klamm audit`: counts by topic, window and tier, with completeness."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.config.settings import Settings, load_settings
from klamm.core.errors import ConfigError
from klamm.plugins.audit.compare import TopicAudit, compare, watermark
from klamm.plugins.audit.config import AuditConfig, expected_tier
from klamm.plugins.audit.reader import read_audit_log
from klamm.plugins.audit.report import as_json, print_report
from klamm.plugins.audit.tiling import TierKey
from klamm.plugins.audit.windows import Span, clock_ms, parse_instant

WAIT_STEP_S = 0.5


@dataclass(frozen=True)
class Question:
    """What is asked: topics (all when empty), tiers that must have counted, instants in ms (None: no bound)."""

    topics: tuple[str, ...] = ()
    expect: tuple[TierKey, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None


@dataclass(frozen=True)
class Answer:
    audits: tuple[TopicAudit, ...]
    unreadable: tuple[str, ...]

    @property
    def complete(self) -> bool:
        return bool(self.audits) and not self.unreadable and all(audit.complete for audit in self.audits)


def ask(client: ClusterClient, config: AuditConfig, question: Question) -> Answer:
    """Read the audit topic and compare; `KlammError` when it cannot be read."""
    log = read_audit_log(client, config.topic)
    wanted = question.topics or config.topics
    events = [event for event in log.events if not question.topics or event.topic in question.topics]
    configured = tuple(TierKey(*expected_tier(name)) for name in config.expect)
    audits = compare(events, clock_ms(), (*configured, *question.expect), wanted)
    return Answer(tuple(_between(audit, question) for audit in audits), log.unreadable)


def _between(audit: TopicAudit, question: Question) -> TopicAudit:
    """Only the windows asked for; the watermark is that of all."""
    since, until = question.since_ms, question.until_ms
    if since is None and until is None:
        return audit
    windows = tuple(
        window
        for window in audit.windows
        if (since is None or window.start_ms >= since) and (until is None or window.start_ms < until)
    )
    return replace(audit, windows=windows)


def audit_config(settings: Settings) -> AuditConfig:
    """`ConfigError` when the file configures no audit, or another system's."""
    if settings.audit is None or not isinstance(settings.audit.config, AuditConfig):
        raise ConfigError(f"{settings.source}: audit: this command needs a section `audit: {{plugin: klamm, …}}`")
    return settings.audit.config


def completeness_watermark(client: ClusterClient, config: AuditConfig, topic: str) -> int | None:
    """Up to which instant (ms since the epoch) all of a topic's tiers are complete; None when nothing is. What a
    downstream job waits for."""
    [audit] = ask(client, config, Question(topics=(topic,))).audits
    return watermark(audit.windows, audit.window_ms)


def audit_command(
    config: Annotated[Path, typer.Option("--config", help="The YAML file.")] = Path("klamm.yaml"),
    topic: Annotated[list[str] | None, typer.Option("--topic", help="Only this topic; may be repeated.")] = None,
    by: Annotated[Span, typer.Option("--by", help="How windows are grouped.")] = Span.WINDOW,
    since: Annotated[str, typer.Option(help="Only windows from this date or time (ISO 8601, UTC).")] = "",
    until: Annotated[str, typer.Option(help="Only windows before this date or time.")] = "",
    expect: Annotated[
        list[str] | None, typer.Option("--expect", help="A tier that must have counted: consumer/GROUP, hadoop/JOB.")
    ] = None,
    wait: Annotated[float, typer.Option(help="Ask again for so many seconds until everything is complete.")] = 0.0,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare what producers, broker, consumers and loads have counted. Exit status 1 when a record is missing, doubled or
    its count is unknown."""
    settings = load_settings(config)
    audit = audit_config(settings)
    question = Question(
        tuple(topic or ()), tuple(map(_tier, expect or ())), _instant("--since", since), _instant("--until", until)
    )
    servers = settings.producer.bootstrap_servers
    with ClusterClient(servers, codecs=settings.codec_table(), client_id="klamm-audit") as client:
        answer = _ask_until(client, audit, question, wait)
    if json_:
        typer.echo(json.dumps(as_json(answer.audits, by, answer.unreadable), indent=1))
    else:
        print_report(Console(), answer.audits, by, answer.unreadable)
    if not answer.complete:
        raise typer.Exit(1)


def _ask_until(client: ClusterClient, config: AuditConfig, question: Question, wait_s: float) -> Answer:
    deadline = time.monotonic() + wait_s
    while True:
        answer = ask(client, config, question)
        if answer.complete or time.monotonic() >= deadline:
            return answer
        time.sleep(WAIT_STEP_S)


def _tier(text: str) -> TierKey:
    try:
        return TierKey(*expected_tier(text))
    except ValueError as error:
        raise ConfigError(f"--expect: {error}") from error


def _instant(option: str, text: str) -> int | None:
    try:
        return parse_instant(text) if text else None
    except ValueError as error:
        raise ConfigError(f"{option}: expected a date or time in ISO 8601, got {text!r}") from error
