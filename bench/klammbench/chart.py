"""Draws the chart of the page: Klamm's ratio to the better Kafka in each cell of each shape, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from klammbench.metric import Metric
from klammbench.shapes.base import Shape
from klammbench.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEAST, _MOST = 0.05, 20.0


def write(measured: Sequence[tuple[Shape, Table]], path: Path) -> bool:
    """Draws one panel for each shape with ratios, of its first rated metric. Returns False and writes no file if no
    shape has any.
    """
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    # Text stays text, and equal results give an identical file.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "klamm", "font.size": 9})
    panels = [(shape, ratios) for shape, table in measured if (ratios := _ratios(shape, table))]
    if not panels:
        return False
    heights = [len(ratios) + 1.5 for _, ratios in panels]
    figure, axes = pyplot.subplots(
        len(panels), 1, figsize=(8, 0.24 * sum(heights) + 0.6), squeeze=False, height_ratios=heights
    )
    for axis, (shape, ratios) in zip(axes[:, 0], panels, strict=True):
        names = list(ratios)[::-1]
        values = [min(max(ratios[name], _LEAST), _MOST) for name in names]
        axis.barh(names, [value - 1 for value in values], left=1, color=["#2a7" if v >= 1 else "#c63" for v in values])
        for place, name in enumerate(names):
            _label(axis, place, values[place], ratios[name])
        axis.axvline(1, color="black", linewidth=0.8)
        axis.tick_params(axis="y", labelsize=8)
        axis.set_xscale("log")
        axis.set_xlim(_LEAST, _MOST)
        axis.set_xticks([0.1, 0.25, 0.5, 1, 2, 4, 10], ["0.1", "0.25", "0.5", "1", "2", "4", "10"])
        axis.minorticks_off()
        axis.set_title(
            f"({shape.NAME}) {shape.TITLE.partition(':')[0]}: {_charted(shape)[1].unit}", loc="left", fontsize=9
        )
    figure.suptitle("Klamm: how many times as good as the better Kafka", x=0.01, ha="left", fontsize=11)
    figure.tight_layout()
    figure.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    return True


def _charted(shape: Shape) -> tuple[str, Metric]:
    """Returns a shape's first metric that is compared by ratio, with its name."""
    return next((name, metric) for name, metric in shape.METRICS.items() if metric.better)


def _label(axis: Axes, place: int, value: float, ratio: float) -> None:
    """Writes the ratio beside the bar's end, or inside the bar if there is no room before the frame."""
    cut = not 1.6 * _LEAST < value < _MOST / 1.6
    rightwards = (value >= 1) != cut
    axis.annotate(
        f"{ratio:.2f}", (value, place), xytext=(3 if rightwards else -3, 0), textcoords="offset points", va="center",
        ha="left" if rightwards else "right", fontsize=7, color="white" if cut else "black",
    )  # fmt: skip


def _ratios(shape: Shape, table: Table) -> dict[str, float]:
    """Returns by cell how many times as good Klamm is: a larger value is always better."""
    name, metric = _charted(shape)
    found = {cell: table.ratio(cell, name, table.ours) for cell in table.cells()}
    return {cell: ratio if metric.better == "higher" else 1 / ratio for cell, ratio in found.items() if ratio}
