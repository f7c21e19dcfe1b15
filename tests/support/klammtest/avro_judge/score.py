"""What a run of the judge covered and found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from .comparison import Judged
from .texts import JudgedText

_TITLES: Final = {
    "types": "type: ",
    "unions": "union: ",
    "logical types": "logical type: ",
    "defaults of": "default: ",
    "changes": "change: ",
    "texts": "text: ",
}


class Score:
    def __init__(self) -> None:
        self.cases = 0
        self.kinds: Counter[str] = Counter()
        self.checks: Counter[str] = Counter()
        self.rules: Counter[str] = Counter()
        self.failed: list[Judged] = []
        self.failed_texts: list[JudgedText] = []

    def add(self, judged: Judged) -> None:
        """Adds a case."""
        self.cases += 1
        judged.case.count(self.kinds)
        self.add_checks(judged)

    def add_checks(self, judged: Judged) -> None:
        """Adds more checks of a case that was added."""
        self.checks.update(judged.checks)
        self.rules.update(judged.rules)
        if judged.unexplained:
            self.failed.append(judged)

    def add_text(self, judged: JudgedText) -> None:
        self.kinds[f"text: {'accepted' if judged.accepted else 'refused'} by Java"] += 1
        self.checks["texts"] += 1
        if judged.rule is not None:
            self.rules[judged.rule] += 1
        elif judged.difference is not None:
            self.failed_texts.append(judged)

    def coverage(self) -> Iterator[tuple[str, list[tuple[str, int]]]]:
        """Yields what the cases had, each with the number of cases, and the checks on each path."""
        for title, prefix in _TITLES.items():
            found = [(name.removeprefix(prefix), n) for name, n in self.kinds.items() if name.startswith(prefix)]
            yield title, sorted(found)
        yield "checks", sorted(self.checks.items())

    def summary(self) -> str:
        checks = sum(self.checks.values())
        failed = len(self.failed) + len(self.failed_texts)
        return f"{self.cases:,} cases, {checks:,} checks, {failed} cases with other differences"
