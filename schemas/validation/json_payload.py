"""Checks bytes by a JSON Schema, with bounded work: patterns run in linear time (RE2), and the `$ref`s that one payload
follows are counted. `format` is an annotation, as in the drafts.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

from jsonschema import validators
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from referencing.exceptions import Unresolvable

from klamm.core.errors import SchemaError

from ..json_schema.patterns import KEYWORDS, compiled
from ..json_schema.schema import draft_class, parse
from ..json_schema.text import load

MAX_REFERENCES: Final = 20_000
"""`$ref`s that are followed for one payload; each takes some 20 us."""
_UNBOUNDED: Final = frozenset({"unevaluatedProperties", "unevaluatedItems"})
"""`jsonschema` validates a value again for these at each level: its work grows exponentially."""


class _Followed(threading.local):
    count = 0


_followed: Final = _Followed()


class JsonPayload:
    """Implements `klamm.schemas.validation.payload.PayloadFormat`."""

    def __init__(self, text: str, references: Mapping[str, str]) -> None:
        schema = parse(text, references, new=False)
        for part in (schema.document, *map(load, references.values())):
            _check_bounded(part)
        self._title = schema.document.get("title") if isinstance(schema.document, dict) else None
        try:
            self._validator = schema.validator_of(_of_draft)
        except (ValueError, AttributeError, TypeError) as error:
            raise SchemaError(f"not a JSON Schema: {str(error)[:200]}") from error

    def name(self, _message: Sequence[int]) -> str | None:
        return self._title if isinstance(self._title, str) else None

    def check(self, payload: bytes, start: int, _message: Sequence[int]) -> None:
        try:
            value = json.loads(payload[start:].decode(), parse_constant=_refuse)
            _followed.count = 0
            found = next(self._validator.iter_errors(value), None)
        except RecursionError:
            raise SchemaError("the payload is nested too deeply") from None
        except Unresolvable as error:
            raise SchemaError(f"its schema cannot be read: {str(error)[:200]}") from None
        except ValueError as error:
            raise SchemaError(f"the payload is no JSON: {str(error)[:200]}") from None
        except (AttributeError, TypeError, KeyError) as error:  # a text that was never checked
            raise SchemaError(f"its schema cannot be read: a keyword has a wrong value: {str(error)[:200]}") from None
        if found is not None:
            where = "/".join(str(part)[:100] for part in found.absolute_path)
            raise SchemaError(f"the payload does not fit its schema: #/{where}: {found.message[:200]}")


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON number")


def _check_bounded(document: Any) -> None:
    """Raises `SchemaError` for keywords and patterns whose work cannot be bounded."""
    waiting = [document]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            _refuse_unbounded(part)
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def _refuse_unbounded(part: dict[str, Any]) -> None:
    for name in _UNBOUNDED & part.keys():
        raise SchemaError(f"values cannot be checked by its schema: {name} is not supported")
    own, keys = part.get("pattern"), part.get("patternProperties")
    for pattern in [*([own] if isinstance(own, str) else []), *(keys if isinstance(keys, dict) else [])]:
        if compiled(pattern) is None:
            raise SchemaError(f"values cannot be checked by its schema: RE2 does not support {pattern!r:.100}")


@cache
def _of_draft(draft: str) -> type[Validator]:
    base = draft_class(draft)
    counted = {name: _counted(base.VALIDATORS[name]) for name in base.VALIDATORS if name.endswith("ef")}
    extended: type[Validator] = validators.extend(base, {**counted, **KEYWORDS})
    return extended


def _counted(keyword: Callable[..., Iterator[ValidationError] | None]) -> Callable[..., Iterator[ValidationError]]:
    """Returns `$ref` and its like, which end after `MAX_REFERENCES`: only these make work without a bound."""

    def follow(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        _followed.count += 1
        if _followed.count > MAX_REFERENCES:
            raise SchemaError(f"the payload makes its schema follow more than {MAX_REFERENCES} references")
        yield from keyword(validator, value, instance, schema) or ()

    return follow
