"""The imports of the built-in plugins from the rest of `klamm`: the public modules, and the exceptions listed here."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import klamm
from klammtest.suite.wheel import ROOT

PUBLIC = ("klamm", "klamm.errors", "klamm.plugin")

DEEP: dict[str, tuple[str, set[str]]] = {
    "klamm.core.child_process": (
        "starts a server as the core does, on a port that is free",
        {"coordination/etcd/server.py", "coordination/local_server.py", "demo/workspace.py"},
    ),
    "klamm.core.cli.foreground": (
        "commands that run until they are stopped treat SIGTERM as Klamm's own do",
        {"audit/cli.py", "coordination/server_command.py"},
    ),
    "klamm.core.cli.output": (
        "lines and tables with names escaped, as the core's commands print them",
        {
            "audit/cli.py",
            "audit/comparison/report.py",
            "coordination/server_command.py",
            "demo/command.py",
            "demo/show.py",
        },
    ),
    "klamm.core.cli.options": ("`klamm audit` has the options of the other commands", {"audit/cli.py"}),
    "klamm.core.client.cluster_client": ("EARLIEST and LATEST, beside ClusterClient", {"audit/reader.py"}),
    "klamm.core.client.errors": (
        "names the nearest topic, as the other commands do",
        {"audit/query.py", "audit/web/views.py"},
    ),
    "klamm.core.client.factory": (
        "every client is made there",
        {
            "audit/cli.py",
            "audit/counting/broker_tier.py",
            "audit/watermarks.py",
            "audit/web/service.py",
            "demo/steps/audit.py",
            "demo/steps/cluster.py",
            "offsets/topic.py",
        },
    ),
    "klamm.core.client.event_publisher": (
        "counts are published by a producer that is not itself audited",
        {"audit/counting/broker_tier.py", "audit/query.py"},
    ),
    "klamm.core.client.reader.topic_table": (
        "a table over a topic, not yet public",
        {"audit/reader.py", "offsets/topic.py"},
    ),
    "klamm.core.cluster.image_reader": ("topic ids, before a broker is up", {"offsets/topic.py"}),
    "klamm.core.cluster.tree": ("the paths of Kafka's tree, which the core shares", {"offsets/coordination.py"}),
    "klamm.core.config.sections.topic_settings": ("checks a topic's name as the core does", {"audit/config.py"}),
    "klamm.core.escaping": ("names from the wire on pages", {"audit/comparison/report.py", "audit/web/templates.py"}),
    "klamm.core.extras": (
        "names the extra that a feature needs",
        {"audit/web/service.py", "demo/flights.py", "demo/steps/registry.py"},
    ),
    "klamm.core.groups.offsets_topic": ("the partition of a group, as the brokers choose it", {"offsets/topic.py"}),
    "klamm.core.groups.records.batches": ("commits are written as a coordinator does", {"offsets/topic.py"}),
    "klamm.core.groups.records.contents": ("commits are read as a coordinator does", {"offsets/topic.py"}),
    "klamm.core.http_service": (
        "a server has the same life cycle, and pages the same look, everywhere",
        {"audit/web/app.py", "audit/web/service.py", "audit/web/templates.py"},
    ),
    "klamm.core.java": (
        "starts a JVM as the core does",
        {"coordination/server_command.py", "coordination/zookeeper/server.py"},
    ),
    "klamm.core.maven": ("gets jars as HDFS does", {"coordination/zookeeper/jars.py"}),
    "klamm.core.process_log": ("the log of a command", {"audit/cli.py"}),
    "klamm.core.records": (
        "the compiled counts by window, and the compiled packing of the columns they are made of",
        {"audit/counting/batch_counts.py", "audit/windows.py"},
    ),
    "klamm.core.records.decode": (
        "the broker tier counts in raw batches",
        {
            "audit/counting/appends.py",
            "audit/counting/batch_counts.py",
            "audit/counting/broker_tier.py",
        },
    ),
    "klamm.core.records.epoch_end": ("whether a log was cut below a position", {"audit/counting/broker_tier.py"}),
    "klamm.core.records.fallback": ("the counts by window where no compiler is", {"audit/counting/batch_counts.py"}),
    "klamm.core.records.header": (
        "batch headers: of raw batches that are counted or read, and of one that the demonstration damages",
        {
            "audit/counting/appends.py",
            "audit/counting/broker_tier.py",
            "demo/steps/mirror.py",
            "demo/steps/plant.py",
        },
    ),
    "klamm.core.records.partition": ("a line names the first of many partitions", {"audit/counting/broker_tier.py"}),
    "klamm.core.records.varint": (
        "reads the mark that an auditing producer leaves in a batch",
        {"audit/counting/origins.py"},
    ),
    "klamm.core.spark_jvm": ("the demonstration starts Spark as a load does", {"demo/reading.py"}),
    "klamm.core.transport.address": (
        "addresses are parsed, printed and listened on as the core does",
        {"audit/web/service.py", "coordination/zookeeper/config.py", "offsets/topic.py"},
    ),
}
"""Internal modules that a built-in plugin imports: why, and where. A third party would have to do without."""


def imports() -> Iterator[tuple[str, str, str]]:
    """File, module and name of each absolute import from `klamm`."""
    for path in sorted((ROOT / "plugins").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            file = path.relative_to(ROOT / "plugins").as_posix()
            if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "klamm":
                yield from ((file, node.module or "", alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from ((file, alias.name, "") for alias in node.names if alias.name.split(".")[0] == "klamm")


def test_each_internal_module_that_is_imported_is_listed_with_a_reason() -> None:
    found: dict[str, set[str]] = {}
    for file, module, _ in imports():
        if module not in PUBLIC:
            found.setdefault(module, set()).add(file)
    assert found == {module: files for module, (_, files) in DEEP.items()}


def test_what_is_public_is_imported_from_the_public_module() -> None:
    """`Buffer`, which several modules define alike, included."""
    public = {*klamm.__all__, *klamm.errors.__all__, *klamm.plugin.__all__}
    assert not [(file, module, name) for file, module, name in imports() if module not in PUBLIC and name in public]
