"""Runs the patterns of JSON Schemas in bounded time: by RE2, linear in the text. Patterns that RE2 does not support
(look-around, back-references) are run by Python's `re`, whose time may be exponential, in a process that is ended when
it takes too long."""

from __future__ import annotations

import atexit
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final

import re2
from jsonschema.exceptions import ValidationError

from klamm.core.errors import SchemaError

from ..worker_process import WorkerProcess

MAX_SECONDS: Final = 2.0
"""For one text and a pattern that RE2 does not know."""
_ESCAPE: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|.)", re.DOTALL)
PROGRAM: Final = """
import json, re, sys
requests, answers = sys.stdin.buffer, sys.stdout.buffer
while header := requests.read(4):
    pattern, text = json.loads(requests.read(int.from_bytes(header, "big")))
    answers.write(b"+0000" if re.search(pattern, text) else b"-0000")
    answers.flush()
""".replace("0000", r"\0" * 4)


def compiled(pattern: str) -> Any:
    """Returns a pattern as RE2 runs it, in linear time; None if RE2 does not support it (look-around,
    back-references)."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 1 << 20
    try:
        return re2.compile(_ESCAPE.sub(lambda found: f"\\x{{{found[1]}}}" if found[1] else found[0], pattern), options)
    except (re2.error, UnicodeEncodeError):
        return None


WORKER: Final = WorkerProcess(lambda: ((sys.executable, "-I", "-S", "-c", PROGRAM), None), MAX_SECONDS)
atexit.register(WORKER.close)


@cache
def _search(pattern: str) -> Callable[[str], bool]:
    fast = compiled(pattern)
    if fast is not None:
        return lambda text: fast.search(text) is not None
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise SchemaError(f"the pattern {pattern!r:.100} cannot be run: {error}") from error

    def search(text: str) -> bool:
        try:
            return WORKER.ask(json.dumps([pattern, text]).encode()) == b"+"
        except TimeoutError:
            raise SchemaError(f"the pattern {pattern!r:.100} takes more than {MAX_SECONDS:g} s") from None

    return search


def matches(pattern: str, text: str) -> bool:
    """Returns True if the pattern is found in the text. Raises `SchemaError` for one that is no pattern, or takes too
    long."""
    try:
        return _search(pattern)(text)
    except UnicodeEncodeError:  # half of a surrogate pair, which RE2 has no form for
        return False


def _pattern(_validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not matches(pattern, instance):
        yield ValidationError(f"{instance!r:.100} does not match {pattern!r:.100}")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], instance: Any, _schema: Any
) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        for pattern, subschema in patterns.items():
            for name, value in instance.items():
                if matches(pattern, name):
                    yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _additional_properties(
    validator: Any, subschema: Any, instance: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", ())
    for name, value in instance.items():
        if name in known or any(matches(pattern, name) for pattern in patterns):
            continue
        if subschema is False:
            yield ValidationError(f"it has the property {name!r:.100}, which is not allowed")
        else:
            yield from validator.descend(value, subschema, path=name)


KEYWORDS: Final = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
}
"""What `jsonschema` is to do for the keywords with patterns."""
