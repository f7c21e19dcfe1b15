"""Tables and target lines from the results."""

from __future__ import annotations

from klammbench.results import Store
from klammbench.shapes import SHAPES
from klammbench.table import Table


def write(store: Store, *, quick: bool) -> list[str]:  # noqa: ARG001 - the page is to come
    """Prints the target lines; gives the failures, a line each."""
    failures = []
    for name, shape in SHAPES.items():
        found = store.load(name)
        if found is None:
            continue
        table = Table(found.rows, shape.METRICS)
        failures += [f"({name}) {failure}" for failure in table.failures()]
        if found.about["finished_in_s"] is None:
            failures.append(f"({name}) was cut off")
        for target in shape.targets(table):
            print("\n".join(target.lines()))
    return failures
