"""Imports for the fork server of `senders`: all that a producer with an audit needs, so that no sender imports it
again.
"""

from __future__ import annotations

import fastavro  # noqa: F401

import klammtest.audit_truth.senders  # noqa: F401
from klamm.core.client.producer.producer import Producer  # noqa: F401
from klamm.core.config.settings import load_settings

load_settings({"audit": {"plugin": "klamm"}}).make_audit()
