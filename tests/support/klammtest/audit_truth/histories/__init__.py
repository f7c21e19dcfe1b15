"""Random histories of a topic with a known truth, in memory: `make audit-truth HISTORIES=100000`.

The production code counts (`plugins/audit/counting`, `hadoop/load/audit.py`) and compares (`plugins/audit/comparison`);
the topic, its leaders, the coordination, the audit topic, the applications and the time are models. `world` has the
models, `actors` what drives the production code, `generate` the steps of a history, `known` what is true, `judge`
compares the report with it, `mutations` breaks each numbered rule of docs/audit.md.
"""
