"""MirrorMaker 2: one worker in dedicated mode, from the jars that `bench/install.sh` fetches.

Its settings are those that Strimzi's documentation ("Handling high volumes of messages") gives for it, except where a
better one was found: more records in a poll and a shorter linger. It copies records only: no heartbeats, no checkpoints
and no group offsets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from klamm.core.java import find_java
from klammbench.paths import VAR
from klammbench.process import tree
from klammbench.systems.base import Child

_JARS = VAR / "mirrormaker"
_JVM: Sequence[str] = (
    "-Xms256m", "-Xmx1G", "-server", "-XX:+UseParallelGC", "-XX:-UsePerfData", "-Djava.awt.headless=true",
)  # fmt: skip
_COMMON: Mapping[str, object] = {
    "clusters": "source, target",
    "source->target.enabled": "true",
    "target->source.enabled": "false",
    "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
    "tasks.max": 2,
    "emit.heartbeats.enabled": "false",
    "emit.checkpoints.enabled": "false",
    "sync.group.offsets.enabled": "false",
    "sync.topic.acls.enabled": "false",
    "refresh.topics.interval.seconds": 5,
}
_TUNED: Mapping[str, object] = {
    "source.consumer.fetch.max.bytes": 52_428_800,
    "source.consumer.max.partition.fetch.bytes": 1_048_576,
    "source.consumer.max.poll.records": 2000,
    "target.producer.batch.size": 327_680,
    "target.producer.linger.ms": 5,
    "target.producer.buffer.memory": 67_108_864,
    "target.offset.flush.timeout.ms": 10_000,
}
_ONE_REPLICA = (
    "replication.factor", "checkpoints.topic.replication.factor", "heartbeats.topic.replication.factor",
    "offset-syncs.topic.replication.factor", "offset.storage.replication.factor", "status.storage.replication.factor",
    "config.storage.replication.factor",
)  # fmt: skip
_LOG4J = """<Configuration status="WARN">
<Appenders><Console name="out"><PatternLayout pattern="%d %p %c %m%n"/></Console></Appenders>
<Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""


class MirrorMaker:
    """The worker. `codec`: that of the producer, as the records are compressed at the source."""

    def __init__(self, folder: Path, source: str, target: str, topics: Sequence[str], codec: str) -> None:
        self._folder = folder
        self._source, self._target = source, target
        self._topics = topics
        self._codec = codec
        self._process: Child | None = None

    def start(self) -> None:
        """Returns at once: the worker has no port. It is up when the target gets records."""
        if not _JARS.exists():
            raise RuntimeError(f"{_JARS} does not exist: run bench/install.sh")
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "log4j2.xml").write_text(_LOG4J)
        properties = {
            **_COMMON,
            **_TUNED,
            **dict.fromkeys(_ONE_REPLICA, 1),
            "source.bootstrap.servers": self._source,
            "target.bootstrap.servers": self._target,
            "source->target.topics": "|".join(self._topics),
            "target.producer.compression.type": self._codec,
        }
        path = self._folder / "mirror.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        log4j = f"-Dlog4j2.configurationFile={self._folder / 'log4j2.xml'}"
        main = "org.apache.kafka.connect.mirror.MirrorMaker"
        command = [find_java(), "-cp", f"{_JARS}/*", log4j, *_JVM, main, str(path)]
        self._process = Child(command, self._folder / "mirrormaker.out", self._folder)

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
        self._process = None

    def pids(self) -> list[int]:
        return tree(self._process.pid) if self._process else []


def version() -> str:
    jar = next(_JARS.glob("connect-mirror-[0-9]*.jar"), None)
    return jar.stem.removeprefix("connect-mirror-") if jar else "not installed"
