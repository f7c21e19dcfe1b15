"""The query of a request: the last value of a name counts, an empty one is none."""

from __future__ import annotations

import re
from typing import Final, TypeVar
from urllib.parse import parse_qsl

from ..refusals import RefusedError
from ..store.subjects import DEFAULT_CONTEXT, context_of, qualified

T = TypeVar("T")
_NUMBER: Final = re.compile(r"[-+]?[0-9]{1,18}")
_SUBJECTS = ("subject", "subjectPrefix")


class Query:
    def __init__(self, raw: bytes = b"", context: str = DEFAULT_CONTEXT) -> None:
        """`context`: that of the path, for subjects that name none."""
        self._pairs = parse_qsl(raw.decode("ascii", "replace"), keep_blank_values=True)
        if context != DEFAULT_CONTEXT:
            given = dict(self._pairs)
            for name in _SUBJECTS:
                value = given.get(name, "")
                if context_of(value) == DEFAULT_CONTEXT and not value.startswith(":"):
                    self._pairs.append((name, qualified(context, value)))

    def all(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]

    def text(self, name: str, default: str = "") -> str:
        found = self.all(name)
        return found[-1] if found else default

    def flag(self, name: str) -> bool:
        """Returns True for `true` in any case."""
        return self.text(name).lower() == "true"

    def page(self, rows: list[T], limit: int = -1) -> list[T]:
        """Returns the rows from `offset` on, `limit` of them; -1 is all. Raises `RefusedError` 422 for what is no
        number."""
        offset, asked = self._number("offset", 0), self._number("limit", -1)
        most = min(limit, asked) if limit >= 0 and asked >= 0 else max(limit, asked)
        start = max(offset, 0)
        return rows[start:] if most < 0 else rows[start : start + most]

    def _number(self, name: str, default: int) -> int:
        text = self.text(name)
        if text and not _NUMBER.fullmatch(text):
            raise RefusedError(422, f"{name} is {text!r:.50}, not a number")
        return int(text) if text else default
