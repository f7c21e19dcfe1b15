"""`klamm audit`: counts by topic, window and tier, with completeness."""

from __future__ import annotations

import json
import math
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from klamm import ClusterClient, Settings, load_settings
from klamm.core.cli.foreground import StopRequestedError, raise_on_stop_signals
from klamm.core.cli.options import DEFAULT_CONFIG, TIMEOUT_S, ConfigFile, interval_s
from klamm.core.cli.output import console, say, say_document
from klamm.core.client.factory import open_client
from klamm.core.process_log import of_command
from klamm.plugin import ConfigError, KlammError

from .comparison.report import as_json, lags, print_report
from .comparison.tiers import TierKey
from .config import AuditConfig, expected_tier
from .event import CONSUMER, HADOOP, TIERS
from .gate import Gate, wait_complete
from .query import (
    Answer,
    AuditQuery,
    AuditQueryRunner,
    absent_topics,
    ask_until_complete,
    audit_config,
    check_topics,
    retire,
    settle,
    silent_tiers,
)
from .windows import Span, parse_span

DEFAULT_TIMEOUT = "1h"

app = typer.Typer(add_completion=False, no_args_is_help=False)

Topics = Annotated[list[str] | None, typer.Option("--topic", help="Only this topic; may be repeated.")]
Since = Annotated[str, typer.Option(help="Only windows from this date or time (ISO 8601, UTC).")]
Until = Annotated[str, typer.Option(help="Only windows before this date or time.")]
Expect = Annotated[
    list[str] | None,
    typer.Option(
        "--expect", help="A tier that must have counted: mirror, consumer/GROUP or hadoop/SINK; may be repeated."
    ),
]


@app.callback(invoke_without_command=True)
def audit_command(
    context: typer.Context,
    config: ConfigFile = DEFAULT_CONFIG,
    topic: Topics = None,
    tier: Annotated[
        list[str] | None,
        typer.Option(
            "--tier",
            help="Only this tier, and those of --expect: producer, broker, mirror, consumer, consumer/GROUP, hadoop, "
            "hadoop/SINK; repeatable.",
        ),
    ] = None,
    by: Annotated[
        Span | None,
        typer.Option(
            "--by", help="Group the windows by this span; if not given, the shortest of at most 60 rows (JSON: window)."
        ),
    ] = None,
    since: Since = "",
    until: Until = "",
    expect: Expect = None,
    wait: Annotated[float, typer.Option(help="Repeat for up to this many seconds until everything is complete.")] = 0.0,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Also write the report as an HTML file that needs no server and no network."
        ),
    ] = None,
    wait_for: Annotated[
        str | None,
        typer.Option(
            "--wait-complete",
            metavar="TOPIC",
            help="Wait until this topic is complete before --until, at all tiers or at those of --tier.",
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(metavar="R", help="With --wait-complete: the ratio, below 1, that each window must reach."),
    ] = None,
    timeout: Annotated[
        str,
        typer.Option(metavar="D", help="With --wait-complete: the longest wait (90s, 10m, 1h); 1h if not given."),
    ] = "",
) -> None:
    """Compare what producers, broker, consumers and loads have counted.

    The exit status is 1 if a record is missing or duplicated, or a count is unknown; with --wait-complete, if that is
    still so after the timeout.
    """
    if context.invoked_subcommand is not None:
        return
    if wait_for is not None:
        began_s = time.monotonic()
        if not wait_for.strip():
            raise ConfigError("--wait-complete: expected the name of a topic")
        refused = {"--topic": topic, "--wait": wait, "--json": json_, "--by": by, "--html": html}
        for option, given in refused.items():
            if given:
                raise ConfigError(f"{option} cannot be combined with --wait-complete")
        gate = _gate(wait_for, tier or [], since, until, threshold)
        timeout_s = interval_s("--timeout", timeout or DEFAULT_TIMEOUT)
        _wait_complete(config, gate, tuple(map(_expected, expect or ())), began_s, timeout_s)
        return
    if threshold is not None or timeout:
        raise ConfigError(f"{'--timeout' if threshold is None else '--threshold'} applies only with --wait-complete")
    if not wait >= 0:  # NaN, too: no time is after it
        raise ConfigError(f"--wait: expected a number of seconds, got {wait:g}")
    if html is not None:
        _check_html(html)
    tiers, expected = tuple(map(_known, tier or ())), tuple(map(_expected, expect or ()))
    selected = (*tiers, *map(str, expected)) if tiers else ()
    query = AuditQuery(tuple(topic or ()), selected, expected, *parse_span(since, until, "--"))
    settings, audit = _configured(config)
    with open_client(settings, "audit") as client:
        answer = ask_until_complete(client, audit, query, wait)
        absent = [] if query.topics else absent_topics(audit, {*client.metadata().topics, *answer.counted})
    if json_:
        report = as_json(answer.audits, by or Span.WINDOW, answer.unreadable)
        for topic_report, each in zip(report["topics"], answer.audits, strict=True):
            topic_report["lag"] = lags(each, answer.logs.get(each.topic, {}))
        say_document(json.dumps(report, indent=1))
    else:
        print_report(console(), answer.audits, by, answer.unreadable, answer.logs)
    for line in (*absent, *silent_tiers(tiers, answer)):
        say(f"klamm: {line}", err=True)
    if html is not None:
        from .web.document import audit_document, write_document
        from .web.views import Filters

        filters = Filters(by, query.since_ms, query.until_ms)
        write_document(html, audit_document(answer, filters))
        if not json_:
            say(f"written: {html}")
    if not answer.complete:
        raise typer.Exit(1)


@app.command("settle")
def settle_command(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic whose counts are settled.")],
    who: Annotated[str, typer.Option("--who", help="The person who settles them.")],
    why: Annotated[str, typer.Option("--why", help="The reason for taking these counts as complete.")],
    config: ConfigFile = DEFAULT_CONFIG,
    tier: Annotated[list[str] | None, typer.Option("--tier", help="Only this tier; may be repeated.")] = None,
    since: Since = "",
    until: Until = "",
    expect: Expect = None,
) -> None:
    """Settle counts that stay unknown. An event in the audit topic records who settled them, and why.

    A missing or duplicated count is proved and cannot be settled. A settled count that changes is unknown again.
    """
    who, why = _text("--who", who), _text("--why", why)
    settings, audit = _configured(config)
    span = parse_span(since, until, "--")
    query = AuditQuery((topic,), tuple(map(_known, tier or ())), tuple(map(_expected, expect or ())), *span)
    with open_client(settings, "audit") as client:
        counts, windows = settle(client, audit, query, who, why)
    say(f"settled {counts} counts in {windows} windows of topic {topic}")


@app.command("retire")
def retire_command(
    tier: Annotated[str, typer.Argument(metavar="TIER", help="The group or lake: consumer/GROUP or hadoop/SINK.")],
    who: Annotated[str, typer.Option("--who", help="The person who ends it.")],
    why: Annotated[str, typer.Option("--why", help="The reason why it is not compared any more.")],
    config: ConfigFile = DEFAULT_CONFIG,
    topic: Annotated[list[str] | None, typer.Option("--topic", help="Only of this topic; may be repeated.")] = None,
    lake: Annotated[
        str, typer.Option("--lake", metavar="ID", help="Only this lake of the sink, by its id in the report.")
    ] = "",
) -> None:
    """End a group or a lake that was renamed or is no longer used: it is no longer compared.

    An event in the audit topic records who ended it, and why. If it counts again, it is compared from then on.
    """
    who, why = _text("--who", who), _text("--why", why)
    key = _expected(tier, "TIER")
    if lake and key.tier != HADOOP:
        raise ConfigError(f"--lake: expected a tier hadoop/SINK with it, got {tier!r}")
    settings, audit = _configured(config)
    with open_client(settings, "audit") as client:
        topics = retire(client, audit, key, tuple(topic or ()), lake, who, why)
    say(f"{tier} ended for {', '.join(topics)}")


@app.command("serve")
def serve_command(
    config: ConfigFile = DEFAULT_CONFIG,
    host: Annotated[str, typer.Option("--host", help="The address to listen on; there is no authentication.")] = (
        "127.0.0.1"
    ),
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="The port to listen on; 0: any free port.")
    ] = 8095,
    topic: Topics = None,
    expect: Expect = None,
    max_events: Annotated[
        int, typer.Option("--max-events", min=1, help="The maximum number of audit events kept in memory.")
    ] = 1_000_000,
) -> None:
    """Serve the audit as web pages, and as JSON below /api, until Ctrl-C or SIGTERM."""
    from .web.service import AuditPages
    from .web.source import ClusterSource

    settings, audit = _configured(config)
    query = AuditQuery(topics=tuple(topic or ()), expect=tuple(map(_expected, expect or ())))

    def connect() -> ClusterClient:
        return open_client(settings, "audit-serve", request_timeout_s=TIMEOUT_S)

    source = ClusterSource(connect, audit, query, max_events=max_events)
    pages = AuditPages(source, host, port, "--port")
    with suppress(StopRequestedError):  # also for a second signal, which ends `stop` early
        try:
            raise_on_stop_signals()
            pages.start()
            say(f"klamm audit serve ready on {pages.url}")
            pages.wait()
        finally:
            pages.stop()
    problem = pages.health()
    if problem is not None:
        raise KlammError(problem)


def _configured(config: Path) -> tuple[Settings, AuditConfig]:
    settings = load_settings(config)
    of_command(settings.log)
    return settings, audit_config(settings)


def _text(option: str, text: str) -> str:
    if not text.strip():
        raise ConfigError(f"{option}: expected a text that is not empty")
    return text.strip()


def _check_html(file: Path) -> None:
    """Checks the options before anything slow starts."""
    if file.is_dir():
        raise ConfigError(f"--html: {file} is a directory; expected the name of a file")
    if not file.absolute().parent.is_dir():
        raise ConfigError(f"--html: there is no directory {file.absolute().parent}")


def _gate(topic: str, tiers: list[str], since: str, until: str, threshold: float | None) -> Gate:
    since_ms, until_ms = parse_span(since, until, "--")
    if until_ms is None:
        raise ConfigError(
            "--wait-complete: expected --until INSTANT, which says up to where the topic must be complete"
        )
    if threshold is not None and not 0 < threshold <= 1:
        raise ConfigError(f"--threshold: expected a ratio above 0 and at most 1, got {threshold:g}")
    return Gate(
        topic,
        until_ms,
        -math.inf if since_ms is None else since_ms,
        1.0 if threshold is None else threshold,
        tuple(map(_known, tiers)),
    )


def _wait_complete(config: Path, gate: Gate, expect: tuple[TierKey, ...], began_s: float, timeout_s: float) -> None:
    """Waits until the gate opens, and prints the result. A tier that is named with its owner must have counted. The
    time-out includes all connections and requests."""
    settings, audit = _configured(config)
    named = [TierKey(tier, owner) for tier, _, owner in (name.partition("/") for name in gate.tiers) if owner]
    query = AuditQuery((gate.topic,), expect=(*expect, *(each for each in named if each.tier in (CONSUMER, HADOOP))))
    deadline_s = began_s + timeout_s
    with open_client(settings, "audit", deadline_s=deadline_s) as client:
        runner = AuditQueryRunner(client, audit, deadline_s=deadline_s)

        asked = 0

        def ask() -> Answer:
            nonlocal asked
            answer = runner.ask(query)
            check_topics(client, query, answer)
            for line in silent_tiers(gate.tiers, answer) if asked == 0 else ():
                say(f"klamm: {line}; waiting for it", err=True)
            asked += 1
            return answer

        say(wait_complete(ask, gate, timeout_s, began_s=began_s))


def _known(text: str) -> str:
    if text.partition("/")[0] not in TIERS:
        known = "producer, broker, mirror, consumer, consumer/GROUP, hadoop or hadoop/SINK"
        raise ConfigError(f"--tier: expected {known}, got {text!r}")
    return text


def _expected(text: str, option: str = "--expect") -> TierKey:
    try:
        return TierKey(*expected_tier(text))
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from error
