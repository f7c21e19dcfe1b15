"""What one broker does for a link beside its fetches. The controller creates and grows mirror topics, copies
configurations and group offsets, and ends mirrors that are to be promoted; each broker reports the partitions that it
leads. One thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from ...client.cluster_client import ClusterClient
from ...client.factory import ClusterAccess, open_client
from ...cluster.mirrors import (
    CopiedNode,
    LinkNode,
    MirrorTopicNode,
    PartitionReport,
    ReportNode,
    copied_path,
    link_path,
    read_reports,
    read_topics,
    report_path,
    topic_path,
    update,
)
from ...cluster.tree import paths
from ...config.section import ConfigSource
from ...config.sections.mirror import MirrorConfig
from ...errors import BrokerError, ErrorCode, KlammError, describe_failure
from ...faults import fault_point
from ...interfaces.coordination import NoNodeError
from ...interfaces.offsets import CommittedOffset
from ...interfaces.service import BrokerContext, ServiceMetric
from ...mirror.group_offsets import GroupOffset, offsets_to_copy
from ...mirror.planner import NewMirror, SourceTopic, TargetTopic, plan_link, selects, selects_group
from ...protocol.apis import ApiKey
from ...records.partition import TopicPartition
from ..services import Services
from .link_fetches import LinkFetches

__all__ = ["LinkControl"]

log = logging.getLogger(__name__)
_TICK_S: Final = 0.2
_LATEST: Final = -1


class LinkControl:
    """One link at one broker. `node`: its definition, which the owner replaces when it has changed."""

    def __init__(
        self, name: str, node: LinkNode, services: Services, context: BrokerContext, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.name = name
        self.node = node
        self.config = MirrorConfig.model_validate(node.config)
        self.problem = ""
        self._services = services
        self._context = context
        self._coordination = context.coordination
        self._topics: dict[str, MirrorTopicNode] = {}
        self._refused: dict[str, str] = {}
        self._reported: ReportNode | None = None
        self._due: dict[str, float] = {}
        self._clients = ExitStack()
        self._stopping = threading.Event()
        access = ClusterAccess(",".join(self.config.bootstrap_servers), services.codecs)
        self._source = self._clients.enter_context(open_client(access, f"mirror-{name}"))
        self._own = self._clients.enter_context(open_client(context, f"mirror-{name}"))
        self.fetches = LinkFetches(
            name, self.config, services, self._coordination, loop, lambda: self._source, lambda: self._topics,
            self._is_paused,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._run, name=f"klamm-mirror-{name}", daemon=True)

    def _is_paused(self, topic: str) -> bool:
        node = self._topics.get(topic)
        return self.node.paused or (node is not None and node.paused)

    def start(self) -> None:
        self.fetches.start()
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self.fetches.stop_soon()
        self._clients.close()
        self.fetches.stop()
        self._thread.join(10)

    def health(self) -> str | None:
        said = self.problem or self.fetches.problem
        return f"mirror {self.name}: {said}" if said else None

    def metrics(self) -> list[ServiceMetric]:
        link = {"link": self.name}
        found = [
            ServiceMetric(
                "mirror_bytes", "Bytes that this broker has copied from the link's source.",
                self.fetches.fetched_bytes, link, is_counter=True,
            )
        ]  # fmt: skip
        for topic, partitions in (self._reported.partitions if self._reported else {}).items():
            for number, report in partitions.items():
                labels = {**link, "topic": topic, "partition": str(number)}
                words = "Records that the source has committed and that are not copied yet; -1 before its first answer."
                found.append(ServiceMetric("mirror_lag_records", words, report.lag, labels))
        for partition, seconds in self.fetches.lags_s().items():
            labels = {**link, "topic": partition.topic, "partition": str(partition.partition)}
            words = "Seconds since the partition had all records that the source had committed."
            found.append(ServiceMetric("mirror_lag_seconds", words, seconds, labels))
        return found

    # -- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            problem = ""
            steps: list[tuple[str, float, Callable[[], None]]] = [
                ("topics here", 0.0, self._read_topics),
                ("promotions", 0.0, self._promote),
                ("source", self.config.metadata_interval_ms / 1000, self._compare),
                ("groups", self.config.groups_interval_ms / 1000, self._copy_groups),
                ("report", 0.0, self._report),
            ]
            for what, interval_s, step in steps:
                if self._stopping.is_set() or time.monotonic() < self._due.get(what, 0.0):
                    continue
                try:
                    step()
                except KlammError as error:
                    problem = problem or f"{what}: {describe_failure(error)}"
                except Exception as error:  # the others, and the broker, go on
                    problem = problem or f"{what}: {describe_failure(error)}"
                    if not self._stopping.is_set():
                        log.exception("mirror %s, %s", self.name, what)
                self._due[what] = time.monotonic() + (min(interval_s, 1.0) if problem else interval_s)
            if problem and problem != self.problem and not self._stopping.is_set():
                log.warning("mirror %s: %s", self.name, problem)
            self.problem = problem
            self._stopping.wait(_TICK_S)

    @property
    def _controls(self) -> bool:
        return self._services.cluster.is_controller

    def _read_topics(self) -> None:
        self._topics = read_topics(self._coordination, self.name)

    def _promote(self) -> None:
        """Ends the mirrors that are to be promoted."""
        for name, node in self._topics.items():
            if node.promote and self._controls:
                self._copy_groups_again()
                fault_point("mirror.promote")
                self._services.cluster.promote_mirror(name)
                fault_point("mirror.promoted")
                log.info("mirror %s: topic %s was promoted; clients write it now", self.name, name)
                self._coordination.delete(topic_path(self.name, name))

    def _copy_groups_again(self) -> None:
        """Copies the groups' offsets once more, unless the source is lost."""
        if self.problem or self.fetches.problem:
            return
        try:
            self._copy_groups()
        except KlammError as error:
            log.warning("mirror %s: offsets of groups were not copied again: %s", self.name, describe_failure(error))

    # -- topics --------------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        """Compares the source's topics with those here; the controller carries out the difference."""
        if self.node.paused:
            return
        view = self._source.metadata()
        cluster = view.cluster_id or ""
        self._check_source(cluster)
        found = {
            name: SourceTopic(topic.topic_id, len(topic.partitions), topic.internal, self._source_configs(name))
            for name, topic in view.topics.items()
            if topic.error is ErrorCode.none and topic.topic_id is not None
            if selects(self.config, name, internal=topic.internal)
        }
        without_id = {
            name: "the source gives it no topic id; Apache Kafka 3.1 or newer is needed"
            for name, topic in view.topics.items()
            if topic.topic_id is None and selects(self.config, name, internal=topic.internal)
        }
        image = self._services.cluster.image()
        here = {
            name: TargetTopic(
                len(topic.partitions), topic.configs, topic.partitions[0].state.mirror if topic.partitions else "",
                node.source if (node := self._topics.get(name)) is not None else "",
            )
            for name, topic in image.topics.items()
        }  # fmt: skip
        plan = plan_link(self.name, self.config, image.cluster_id, cluster, found, here)
        refused = {**plan.refused, **without_id}
        self.fetches.on_topics(
            (name, found[node.source].topic_id) for name, node in self._topics.items() if node.source in found
        )
        if self._controls:
            for name, new in plan.create.items():
                self._try(refused, new.source, partial(self._create, name, new))
            for name, count in plan.grow.items():
                self._try(refused, name, partial(self._services.cluster.create_partitions, name, count))
            for name, changes in plan.configs.items():
                self._try(refused, name, partial(self._services.cluster.alter_topic_config, name, changes))
        for topic, why in refused.items():
            if self._refused.get(topic) != why:
                log.warning("mirror %s: topic %s is not mirrored: %s", self.name, topic, why)
        self._refused = refused

    def _try(self, refused: dict[str, str], topic: str, call: Callable[[], object]) -> None:
        """A topic that cannot be changed does not stop the others."""
        try:
            call()
        except BrokerError as error:
            refused[topic] = str(error)

    def _check_source(self, cluster: str) -> None:
        """Raises `BrokerError` if the link's addresses lead to another cluster than before."""

        def note(node: LinkNode | None) -> LinkNode | None:
            return None if node is None else node.model_copy(update={"source_cluster_id": cluster})

        if not self.node.source_cluster_id and cluster:
            update(self._coordination, link_path(self.name), LinkNode, note)
        elif cluster != self.node.source_cluster_id:
            raise BrokerError(
                ErrorCode.inconsistent_cluster_id,
                f"bootstrap.servers leads to cluster {cluster}, the link was made with {self.node.source_cluster_id}",
            )

    def _source_configs(self, topic: str) -> Mapping[str, str]:
        """Returns the configurations that the source's topic sets itself."""
        if not self.config.configs or not self._controls:
            return {}
        return {
            name: entry.value
            for name, entry in self._source.describe_configs(topic).items()
            if entry.source == ConfigSource.TOPIC and entry.value is not None
        }

    def _create(self, name: str, new: NewMirror) -> None:
        def note(_: MirrorTopicNode | None) -> MirrorTopicNode:
            return MirrorTopicNode(source=new.source, topic_id=new.topic_id)

        update(self._coordination, topic_path(self.name, name), MirrorTopicNode, note)
        factor = self._services.config.default_replication_factor
        self._services.cluster.create_topic(name, new.partitions, factor, new.configs, mirror=self.name)
        self._read_topics()
        log.info("mirror %s: topic %s was created with %d partitions", self.name, name, new.partitions)

    # -- groups --------------------------------------------------------------------------------------------------

    def _copy_groups(self) -> None:
        if not self._controls or not self.config.groups_regex or self.node.paused:
            return
        ends = self._ends()
        for group in sorted(_groups(self._source)) if ends else ():
            if selects_group(self.config, group) and not self._stopping.is_set():
                self._copy_group(group, ends)

    def _ends(self) -> dict[TopicPartition, int]:
        """Returns the high watermarks of the partitions that are mirrors."""
        image = self._services.cluster.image()
        mirrors = [
            TopicPartition(name, number)
            for name in self._topics
            if (topic := image.topics.get(name)) is not None
            for number, partition in topic.partitions.items()
            if partition.state.mirror == self.name
        ]
        listed = self._own.list_offsets(dict.fromkeys(mirrors, _LATEST)) if mirrors else {}
        return {partition: offset for partition, (offset, _) in listed.items()}

    def _copy_group(self, group: str, ends: Mapping[TopicPartition, int]) -> None:
        here = {node.source: name for name, node in self._topics.items()}
        source = {
            TopicPartition(here[tp.topic], tp.partition): GroupOffset(found.offset, found.leader_epoch)
            for tp, found in self._source.fetch_offsets(group).items()
            if tp.topic in here
        }
        if not source:
            return
        target = {
            tp: GroupOffset(found.offset, found.leader_epoch)
            for tp, found in self._own.fetch_offsets(group).items()
            if tp in ends
        }
        path = copied_path(self.name, group)
        stored = update(self._coordination, path, CopiedNode, lambda node: node or CopiedNode())
        assert stored is not None
        copied = {
            TopicPartition(topic, number): tuple(GroupOffset(*each) for each in found)
            for topic, partitions in stored.offsets.items()
            for number, found in partitions.items()
        }
        plan = offsets_to_copy(source, target, copied, ends, self._members(group))
        if not plan.commits:
            return
        offsets: dict[str, dict[int, Any]] = {}
        for tp, known in plan.copied.items():
            offsets.setdefault(tp.topic, {})[tp.partition] = tuple(tuple(each) for each in known)
        update(self._coordination, path, CopiedNode, lambda _: CopiedNode(offsets=offsets))
        commits = {tp: CommittedOffset(each.offset, each.leader_epoch) for tp, each in plan.commits.items()}
        try:
            self._own.commit_offsets(group, commits)
        except BrokerError as error:
            if error.code is not ErrorCode.unknown_member_id:  # the group has classic members here
                raise

    def _members(self, group: str) -> list[str]:
        """Returns the members of a registry group here; the broker refuses a commit while there are classic ones."""
        try:
            return self._coordination.children(paths.group_ids(group))
        except NoNodeError:
            return []

    # -- the report ----------------------------------------------------------------------------------------------

    def _report(self) -> None:
        partitions: dict[str, dict[int, PartitionReport]] = {}
        for tp, report in self.fetches.reports().items():
            partitions.setdefault(tp.topic, {})[tp.partition] = report
        path = report_path(self.name, self._services.broker_id)
        before = self._reported or read_reports(self._coordination, self.name).get(self._services.broker_id)
        ends = {topic: dict(known) for topic, known in before.source_ends.items()} if before is not None else {}
        for topic, reports in partitions.items():
            known = {number: report.source_end for number, report in reports.items() if report.source_end >= 0}
            ends.setdefault(topic, {}).update(known)
        found = ReportNode(
            partitions=partitions, refused=self._refused if self._controls else {},
            problem=self.problem or self.fetches.problem,
            source_ends={topic: known for topic, known in ends.items() if topic in self._topics},
        )  # fmt: skip
        if found != self._reported:
            update(self._coordination, path, ReportNode, lambda _: found)
            self._reported = found


def _groups(client: ClusterClient) -> set[str]:
    """Returns the groups with classic members or with offsets."""
    found: set[str] = set()
    for node_id in client.metadata(()).nodes:
        message = client.call(ApiKey.LIST_GROUPS, node_id, states_filter=(), types_filter=())
        if message.error_code != ErrorCode.none:
            raise BrokerError(message.error_code, f"broker {node_id} of the source cannot list its groups")
        found.update(group.group_id for group in message.groups)
    return found
