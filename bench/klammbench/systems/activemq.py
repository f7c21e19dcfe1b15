"""ActiveMQ from Debian's package (its jars are enough): the KahaDB store, persistent messages, OpenWire and STOMP.

As in the Kafka paper's section 5 the store is flushed asynchronously: `journalDiskSyncStrategy=periodic` is once a
second.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from klamm.core.java import find_java
from klammbench.process import tree
from klammbench.systems.base import WARM_S, Child, answers, free_ports, remove

_JAR = Path("/usr/share/java/activemq-run.jar")
_HOME = Path("/usr/share/activemq")
_JVM = ("-Xms512M", "-Xmx1G", "-Dorg.apache.activemq.UseDedicatedTaskRunner=false")
_OPEN = (
    "java.base/java.security", "java.base/java.net", "java.base/java.lang", "java.base/java.util",
    "java.naming/javax.naming.spi", "java.rmi/sun.rmi.transport.tcp", "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
)  # fmt: skip
_CONFIG = """<beans xmlns="http://www.springframework.org/schema/beans"
       xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
       xsi:schemaLocation="http://www.springframework.org/schema/beans
                           http://www.springframework.org/schema/beans/spring-beans.xsd
                           http://activemq.apache.org/schema/core
                           http://activemq.apache.org/schema/core/activemq-core.xsd">
  <broker xmlns="http://activemq.apache.org/schema/core" brokerName="bench" useJmx="false" useShutdownHook="true"
          schedulerSupport="false" advisorySupport="false" dataDirectory="{folder}/data">
    <destinationPolicy><policyMap><policyEntries>
      <policyEntry queue="&gt;" producerFlowControl="true" memoryLimit="256mb" optimizedDispatch="true"/>
    </policyEntries></policyMap></destinationPolicy>
    <persistenceAdapter>
      <kahaDB directory="{folder}/data/kahadb" journalDiskSyncStrategy="periodic"/>
    </persistenceAdapter>
    <systemUsage><systemUsage>
      <memoryUsage><memoryUsage limit="512 mb"/></memoryUsage>
      <storeUsage><storeUsage limit="8 gb"/></storeUsage>
      <tempUsage><tempUsage limit="1 gb"/></tempUsage>
    </systemUsage></systemUsage>
    <transportConnectors>
      <transportConnector name="openwire" uri="tcp://127.0.0.1:{openwire}"/>
      <transportConnector name="stomp" uri="stomp://127.0.0.1:{stomp}"/>
    </transportConnectors>
  </broker>
</beans>
"""
_LOG4J = """rootLogger.level = WARN
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c %m%n
"""


class ActiveMQ:
    def __init__(self, folder: Path) -> None:
        self.name = "activemq"
        self._folder = folder
        self.data_dir = folder / "data"
        self.warm_s = WARM_S
        self.openwire_port, self.port = free_ports(2)
        self._process: Child | None = None

    def version(self) -> str:
        asked = ["dpkg-query", "-W", "-f", "${Version}", "activemq"]
        found = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=30).stdout
        return found.partition("+")[0] or "not installed"

    def settings(self) -> str:
        return f"{' '.join(_JVM)}; KahaDB, journalDiskSyncStrategy=periodic; no JMX, no advisories"

    @property
    def bootstrap(self) -> str:
        """The address of STOMP."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        if not _JAR.exists():
            raise RuntimeError(f"{_JAR} does not exist: run bench/install.sh")
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / "activemq.xml"
        config.write_text(_CONFIG.format(folder=self._folder, openwire=self.openwire_port, stomp=self.port))
        log4j = self._folder / "log4j2.properties"
        log4j.write_text(_LOG4J)
        opens = [f"--add-opens={module}=ALL-UNNAMED" for module in _OPEN]
        where = [f"-Dactivemq.{part}={self._folder}" for part in ("base", "conf", "data")]
        main = ["-jar", str(_JAR), "start", f"xbean:file:{config}"]
        command = [find_java(), *_JVM, *opens, f"-Dactivemq.home={_HOME}", *where,
                   f"-Dlog4j2.configurationFile={log4j}", *main]  # fmt: skip
        self._process = Child(command, self._folder / "broker.out", self._folder)
        self._process.wait_until(lambda: answers(self.openwire_port) and answers(self.port), self.name)

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
        self._process = None

    def pids(self) -> list[int]:
        return tree(self._process.pid) if self._process else []

    def wipe(self) -> None:
        remove(self._folder)


def activemq(folder: Path) -> ActiveMQ:
    return ActiveMQ(folder)
