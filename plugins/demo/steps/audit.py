"""Step 5: runs `klamm audit` at the offline cluster: the table by month and tier, and the lowest completeness."""

from __future__ import annotations

import io

from rich.console import Console

from klamm import load_settings
from klamm.core.client.factory import open_client

from ...audit.comparison.report import print_report
from ...audit.query import Answer, AuditQuery, ask_until_complete, audit_config
from ...audit.windows import Span
from ..processes import DemoError
from ..workspace import Workspace

WIDTH = 200


def ask_audit(workspace: Workspace, timeout_s: float) -> Answer:
    """Returns the report once everything is complete, or after `timeout_s`."""
    settings = load_settings(workspace.offline)
    with open_client(settings, "demo") as client:
        return ask_until_complete(client, audit_config(settings), AuditQuery(), timeout_s)


def table(answer: Answer) -> str:
    """Returns the output of `klamm audit --by month`."""
    out = io.StringIO()
    print_report(Console(file=out, width=WIDTH), answer.audits, Span.MONTH, answer.unreadable)
    return out.getvalue().rstrip()


def lowest(answer: Answer) -> float | None:
    """Returns the lowest ratio over all windows and tiers; None if one is unknown."""
    if len(answer.audits) != 1:
        raise DemoError(f"the audit knows {len(answer.audits)} topics, not one")
    ratio = answer.audits[0].lowest()
    return None if ratio == float("inf") else ratio
