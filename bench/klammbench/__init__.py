"""`make bench`: Klamm beside Apache Kafka and others, in one run, interleaved. docs/benchmarks.md says how to read it.

    PYTHONPATH=bench:tests/support .venv/bin/python -m klammbench [--quick] [--only b,c] [--rounds 5]

**A system** is one file in `systems/` with a class of the protocol `systems.base.System`, and one line in
`systems/__init__.py: SYSTEMS` (name → class or function that takes a folder). It is started once for a shape and kept
running over all its cells.

**A shape** is one file in `shapes/` that satisfies the protocol `shapes.base.Shape` as a module (`NAME`, `TITLE`,
`SYSTEMS`, `METRICS`, `MANAGED`, `cells(quick)`, `warm(system)`, `run(cell, system, number)`, `targets(table)`), and one
line in `shapes/__init__.py: SHAPES`. `run` measures one cell on one system once and returns numbers by metric name; it
raises when what it measured is not what it asked for. A `LimitedCell` names the systems and the number of rounds that
it is measured on. The harness does the rounds, the order, the A/A pair, the tables
and the target lines, and keeps account of failures: a failed cell never ends the run.

`rounds.py` runs, `results.py` keeps (JSON lines in `var/bench/results`, one file a shape, so that pieces merge),
`table.py` computes medians and ratios, `targets.py` judges, `report.py` and `chart.py` write `docs/benchmarks.md`.
"""
