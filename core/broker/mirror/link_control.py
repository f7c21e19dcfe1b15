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
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Final
from uuid import UUID

from ...client.cluster_client import ClusterClient
from ...client.edges import LATEST
from ...client.errors import ConnectionFailedError
from ...client.factory import ClusterAccess, open_client
from ...client.network.metadata import ClusterView
from ...client.network.request_router import Network
from ...cluster.image import ClusterImage, TopicImage
from ...cluster.mirrors import (
    CopiedNode,
    LinkNode,
    MirrorCut,
    MirrorOf,
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
from ...errors import BrokerError, ConfigError, ErrorCode, KlammError, describe_failure
from ...faults import fault_point
from ...interfaces.coordination import NoNodeError
from ...interfaces.service import BrokerContext, ServiceMetric
from ...log.cut_batches import adopted_cut
from ...mirror.adoption import PromotionStart
from ...mirror.group_offsets import GroupOffset, offsets_to_copy
from ...mirror.origin import ORIGIN
from ...mirror.partition_mirror import MirrorStatus
from ...mirror.planner import LinkPlan, NewMirror, SourceTopic, TargetTopic, plan_link, selects, selects_group
from ...protocol.apis import ApiKey
from ...records.partition import TopicPartition, counted
from ...replication.partition_state import NO_EPOCH
from ...transport.plaintext_stream import dial_plaintext
from ..services import Services
from ..topic_creation import check_topic_config
from .link_fetches import LinkFetches

log = logging.getLogger(__name__)
_TICK_S: Final = 0.2
_TOPICS_HERE: Final = "topics here"
_SOURCE_S: Final = 5.0
"""How long the source may take to answer; promotions wait meanwhile."""
_GROUPS_S: Final = 1.0
"""How long groups are copied before reports and promotions have their turn."""
LAG_SECONDS: Final = "mirror_lag_seconds"
"""A metric, which a rule of examples/alerts.yaml asks for."""
_FETCH: Final = 13
"""The version of Fetch since which a client names topics by their ids; since 12, the epoch of its last record."""


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
        self._left_out: dict[str, str] = {}
        self._failed: dict[str, str] = {}
        """Why the last try of a step failed."""
        self._source_refused = False
        self._groups_left: list[str] = []
        """The groups that are still to be copied this time."""
        self._uncopied: dict[str, str] = {}
        """Groups whose offsets could not be copied the last time, with the reason."""
        self._unlisted = ""
        """Why groups of a broker of the source are not known; empty if all are."""
        self._noted: dict[TopicPartition, UUID] = {}
        """The topic ids of logs whose cut at an adoption, if there is one, is stored."""
        self._reported: ReportNode | None = None
        self._due: dict[str, float] = {}
        self._clients = ExitStack()
        self._stopping = threading.Event()
        access = ClusterAccess(",".join(self.config.bootstrap_servers), services.codecs)
        dial = partial(dial_plaintext, receive_buffer=self.config.socket_receive_buffer_bytes)
        self._source = self._clients.enter_context(open_client(access, f"mirror-{name}", network=Network(dial=dial)))
        self._own = self._clients.enter_context(open_client(context, f"mirror-{name}"))
        self.fetches = LinkFetches(
            name, self.config, services, self._coordination, loop, lambda: self._source, lambda: self._topics,
            self._stops,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._run, name=f"klamm-mirror-{name}", daemon=True)

    def _stops(self, topic: str) -> str:
        """Returns the status for which a topic is not fetched; empty if it is."""
        node = self._topics.get(topic)
        if self.node.paused or (node is not None and node.paused):
            return "PAUSED"
        return "FAILED" if self._source_refused else ""

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
            words = (
                "Seconds since the partition had all records that the source had committed, or this broker leads it."
            )
            found.append(ServiceMetric(LAG_SECONDS, words, seconds, labels))
        return found

    # -- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            steps: list[tuple[str, float, Callable[[], None]]] = [
                (_TOPICS_HERE, 0.0, self._read_topics),
                ("promotions", 0.0, self._promote),
                ("adoptions", 0.0, self._adopt),
                ("report", 0.0, self._report),  # before the source is asked, which takes time while it does not answer
                ("source", self.config.metadata_interval_ms / 1000, self._compare),
                ("groups", self.config.groups_interval_ms / 1000, self._copy_groups),
            ]
            for what, interval_s, step in steps:
                if self._stopping.is_set() or time.monotonic() < self._due.get(what, 0.0):
                    continue
                problem = ""
                try:
                    step()
                except ConfigError as error:
                    problem = str(error)
                except KlammError as error:
                    problem = f"{what}: {describe_failure(error)}"
                except Exception as error:  # the others, and the broker, go on
                    problem = f"{what}: {describe_failure(error)}"
                    if not self._stopping.is_set():
                        log.exception("mirror %s, %s", self.name, what)
                if problem and problem != self._failed.get(what) and not self._stopping.is_set():
                    log.warning("mirror %s: %s", self.name, problem)
                self._failed[what] = problem
                interval_s = 0.0 if step == self._copy_groups and self._groups_left else interval_s
                self._due[what] = time.monotonic() + (min(interval_s, 1.0) if problem else interval_s)
                self.problem = next(filter(None, self._failed.values()), "")
            self._stopping.wait(_TICK_S)

    @property
    def _controls(self) -> bool:
        return self._services.cluster.is_controller

    def _read_topics(self) -> None:
        self._topics = read_topics(self._coordination, self.name)

    def _promote(self) -> None:
        """Ends the mirrors that are to be promoted."""
        wanted = [name for name, node in self._topics.items() if node.promote]
        if not wanted or not self._controls:
            return
        self._copy_groups_again()
        for name in wanted:
            fault_point("mirror.promote")
            self._services.cluster.promote_mirror(name)
            fault_point("mirror.promoted")
            log.info("mirror %s: topic %s was promoted; clients write it now", self.name, name)
            self._coordination.delete(topic_path(self.name, name))

    def _adopt(self) -> None:
        """Makes mirrors of the topics that are to mirror their former mirrors, and stores what this broker has cut from
        their logs."""
        problem: KlammError | None = None
        for name, node in list(self._topics.items()):
            try:
                if node.adopt and self._controls:
                    self._adopt_topic(name, node)
                self._note_adopted_cuts(name)
            except KlammError as error:  # of this topic: the others are adopted
                problem = error
        if problem is not None:
            raise problem

    def _adopt_topic(self, name: str, node: MirrorTopicNode) -> None:
        promotions = {number: PromotionStart(*each) for number, each in node.adopt.items()}
        try:
            self._services.cluster.adopt_mirror(name, self.name, promotions, node.adopt_id)
        except BrokerError as error:
            if error.code not in (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id):
                raise
            log.warning("mirror %s: topic %s is not adopted: it was deleted since the command", self.name, name)
            self._coordination.delete(topic_path(self.name, name))
            return
        log.info("mirror %s: topic %s mirrors its former mirror now", self.name, name)
        self._change_topic(name, lambda known: known.model_copy(update={"adopt": {}}))
        self._refused.pop(name, None)  # it was an ordinary topic

    def _note_adopted_cuts(self, name: str) -> None:
        """Stores what was cut from the logs here when the topic was adopted, also before a restart."""
        topic = self._services.cluster.image().topics.get(name)
        for number in () if topic is None or topic.former is None else topic.partitions:
            found = self._services.logs.get(TopicPartition(name, number))
            if found is None or found.topic_id == self._noted.get(found.tp):
                continue
            topic_id = found.topic_id
            if (cut := adopted_cut(found)) is not None:
                known = MirrorCut(
                    partition=number, start=cut.start, end=cut.end, broker=self._services.broker_id,
                    path=str(cut.path),
                )  # fmt: skip
                self._change_topic(name, partial(_with_cut, known))
            self._noted[found.tp] = topic_id

    def _change_topic(self, name: str, change: Callable[[MirrorTopicNode], MirrorTopicNode]) -> None:
        def changed(node: MirrorTopicNode | None) -> MirrorTopicNode | None:
            return None if node is None else change(node)

        update(self._coordination, topic_path(self.name, name), MirrorTopicNode, changed)

    def _copy_groups_again(self) -> None:
        """Copies the groups' offsets once more, unless the source is lost."""
        if {report.status for report in self.fetches.reports().values()} == {MirrorStatus.SOURCE_UNREACHABLE.value}:
            return
        try:
            self._copy_groups(whole=True)
        except KlammError as error:
            log.warning("mirror %s: offsets of groups were not copied again: %s", self.name, describe_failure(error))

    # -- topics --------------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        """Compares the source's topics with those here; the controller carries out the difference."""
        if self.node.paused:
            return
        view = self._source.metadata(timeout_s=_SOURCE_S)
        image = self._services.cluster.image()
        try:
            self._check_source(view, image.cluster_id)
            self._source_refused = False
        except ConfigError:
            self._source_refused = True
            raise
        configs, origins, hidden = self._source_configs(view)
        for here, node in self._topics.items():
            if node.source in hidden and here in image.topics:  # a mirror keeps those that it has
                configs[node.source] = dict(image.topics[here].configs)
        found = {
            name: SourceTopic(
                topic.topic_id, len(topic.partitions), topic.internal, configs.get(name, {}), origins.get(name, "")
            )
            for name, topic in view.topics.items()
            if topic.error is ErrorCode.none and topic.topic_id is not None
            if name in configs or name not in hidden
        }
        without_id = {
            name: "the source gives it no topic id; Apache Kafka 3.1 or newer is needed"
            for name, topic in view.topics.items()
            if topic.error is ErrorCode.none and topic.topic_id is None
            if selects(self.config, name, internal=topic.internal)
        }
        unreadable = {
            name: f"the source answers {topic.error.name.upper()}"
            for name, topic in view.topics.items()
            if topic.error is not ErrorCode.none and selects(self.config, name, internal=topic.internal)
        }
        plan = plan_link(self.name, self.config, image.cluster_id, found, self._topics_here(image))
        refused = {**plan.refused, **without_id, **unreadable}
        refused = {name: f"not mirrored: {why}" for name, why in refused.items()}
        for name, why in hidden.items():
            what = "mirrored with its earlier configuration" if name in configs else "not mirrored"
            refused[name] = f"{what}: the source does not show its configuration ({why}); grant DESCRIBE_CONFIGS there"
        ids = {name: topic.topic_id for name, topic in view.topics.items() if topic.error is ErrorCode.none}
        self.fetches.on_topics((name, ids[node.source]) for name, node in self._topics.items() if ids.get(node.source))
        if self._controls:
            self._carry_out(plan, image, ids, refused)
        for topic, why in refused.items():
            if self._refused.get(topic) != why:
                log.warning("mirror %s: topic %s: %s", self.name, topic, why)
        for topic, why in plan.left_out.items():
            if topic not in self._left_out:
                log.info("mirror %s: topic %s is left out: %s", self.name, topic, why)
        self._refused, self._left_out = refused, dict(plan.left_out)

    def _carry_out(
        self, plan: LinkPlan, image: ClusterImage, ids: Mapping[str, UUID | None], refused: dict[str, str]
    ) -> None:
        """Changes the topics here, except those of a source's topic that does not have its id of `ids` any more: its
        configuration was read by name, and is compared the next time."""
        source_of = {name: node.source for name, node in self._topics.items()}
        grow, alter = self._grow, self._alter
        calls: list[tuple[str, Callable[[], object]]] = [
            *((new.source, partial(self._create, name, new)) for name, new in plan.create.items()),
            *((source_of[name], partial(grow, name, count)) for name, count in plan.grow.items()),
            *((source_of[name], partial(alter, image.topics[name], changes)) for name, changes in plan.configs.items()),
        ]
        replaced = self._replaced({source: ids.get(source) for source, _ in calls})
        for source, call in calls:
            if source not in replaced:
                self._try(refused, source, call)

    def _replaced(self, ids: Mapping[str, UUID | None]) -> set[str]:
        """Returns those of the source's topics that do not have these ids any more."""
        if not ids:
            return set()
        topics = self._source.metadata(ids, timeout_s=_SOURCE_S).topics
        return {name for name, known in ids.items() if name not in topics or topics[name].topic_id != known}

    def _topics_here(self, image: ClusterImage) -> dict[str, TargetTopic]:
        found = {}
        for name, topic in image.topics.items():
            states = [partition.state for partition in topic.partitions.values()]
            node = self._topics.get(name)
            found[name] = TargetTopic(
                len(states), topic.configs, topic.partitions[0].state.mirror if states else "",
                "" if node is None else node.source, any(state.promoted_epoch != NO_EPOCH for state in states),
                None if node is None else node.topic_id,
            )  # fmt: skip
        return found

    def _try(self, refused: dict[str, str], topic: str, call: Callable[[], object]) -> None:
        """A topic that cannot be changed does not stop the others."""
        try:
            call()
        except (BrokerError, ConfigError) as error:
            refused[topic] = str(error)

    def _check_source(self, view: ClusterView, own: str) -> None:
        """Stores the source's cluster id, at the first time. Raises `ConfigError` if the link must copy nothing: from
        this cluster, from another one than at first, or from brokers whose Fetch does not find a divergence."""
        cluster, servers = view.cluster_id or "", ",".join(self.config.bootstrap_servers)
        again = f"correct bootstrap.servers, then run `klamm mirror create {self.name}`"
        if cluster == own:
            raise ConfigError(f"{servers} is this cluster ({own}), and a link copies from another one: {again}")

        def note(node: LinkNode | None) -> LinkNode | None:
            return None if node is None else node.model_copy(update={"source_cluster_id": cluster})

        if not self.node.source_cluster_id and cluster:
            update(self._coordination, link_path(self.name), LinkNode, note)
        elif cluster != self.node.source_cluster_id:
            raise ConfigError(
                f"{servers} is cluster {cluster or 'without an id'}, and the link has copied from "
                f"{self.node.source_cluster_id}: {again}; to copy from the other one, promote or delete the link's "
                f"topics, run `klamm mirror drop {self.name}`, and create it"
            )
        for node_id in view.nodes:
            with suppress(ConnectionFailedError):  # its partitions are not fetched either
                self._check_broker(node_id)

    def _check_broker(self, node_id: int) -> None:
        message = self._source.call(
            ApiKey.API_VERSIONS,
            node_id,
            timeout_s=_SOURCE_S,
            retry=False,
            client_software_name="klamm-mirror",
            client_software_version="1",
        )
        newest = next((each.max_version for each in message.api_keys if each.api_key == ApiKey.FETCH), -1)
        if newest < _FETCH:
            raise ConfigError(
                f"broker {node_id} of the source serves Fetch only up to version {newest}, and a mirror needs "
                f"{_FETCH}: upgrade it to Apache Kafka 3.1 or newer"
            )

    def _source_configs(self, view: ClusterView) -> tuple[dict[str, dict[str, str]], dict[str, str], dict[str, str]]:
        """Returns of the topics of the source those of the configurations to be copied that they set themselves, and of
        which clusters they are mirrors; and for topics whose configuration the source does not show, the reason."""
        named = [
            name
            for name, topic in view.topics.items()
            if topic.error is ErrorCode.none and selects(self.config, name, internal=topic.internal)
        ]
        if not named or not self._controls:
            return {}, {}, {}
        described, hidden = self._source.describe_topics(named, (*self.config.configs, ORIGIN), timeout_s=_SOURCE_S)
        origins = {name: entries[ORIGIN].value or "" for name, entries in described.items() if ORIGIN in entries}
        found = {
            name: {
                entry.name: entry.value
                for entry in entries.values()
                if entry.source == ConfigSource.TOPIC and entry.value is not None
            }
            for name, entries in described.items()
        }
        return found, origins, hidden

    def _create(self, name: str, new: NewMirror) -> None:
        link = update(self._coordination, link_path(self.name), LinkNode, lambda node: node)
        if link is None or link.paused:  # since this broker has read it
            return
        self._check_configs(new.configs, "not mirrored: ")
        node = MirrorTopicNode(source=new.source, topic_id=new.topic_id, since_ms=time.time_ns() // 1_000_000)
        factor = self._services.config.default_replication_factor
        try:
            self._services.cluster.create_topic(
                name, new.partitions, factor, new.configs, mirror=MirrorOf(self.name, node)
            )
        except BrokerError as error:
            raise ConfigError(f"not mirrored: it cannot be created here: {error}") from error
        self._read_topics()
        log.info("mirror %s: topic %s was created with %d partitions", self.name, name, new.partitions)

    def _grow(self, name: str, count: int) -> None:
        try:
            self._services.cluster.create_partitions(name, count)
        except BrokerError as error:
            raise ConfigError(f"mirrored without the source's new partitions: {error}") from error

    def _alter(self, topic: TopicImage, changes: Mapping[str, str | None]) -> None:
        after = {name: value for name, value in {**topic.configs, **changes}.items() if value is not None}
        self._check_configs(after, "mirrored with its earlier configuration: ")
        self._services.cluster.alter_topic_config(topic.name, changes)

    def _check_configs(self, configs: Mapping[str, str], what: str) -> None:
        try:
            check_topic_config(self._services, configs)
        except ConfigError as error:
            raise ConfigError(
                f"{what}this cluster refuses the source's {error}; change it there, or name in the link's `configs` "
                "only keys that are to be copied"
            ) from error

    # -- groups --------------------------------------------------------------------------------------------------

    def _copy_groups(self, *, whole: bool = False) -> None:
        """Copies the offsets of groups for `_GROUPS_S`, and the next time of those that are left, so that the other
        steps do not wait; with `whole`, of all groups."""
        if not self._controls or not self.config.groups_regex or self.node.paused or self._failed.get("source"):
            return
        ends = self._ends()
        if not ends:
            self._groups_left = []
            return
        if whole or not self._groups_left:
            found, self._unlisted = groups_of(self._source)
            groups = [group for group in found if selects_group(self.config, group)]
            self._groups_left = sorted(groups, reverse=True)
            self._uncopied = {group: why for group, why in self._uncopied.items() if group in groups}
        until = time.monotonic() + _GROUPS_S
        while self._groups_left and not self._stopping.is_set():
            group = self._groups_left.pop()
            try:
                self._copy_group(group, ends)
                self._uncopied.pop(group, None)
            except BrokerError as error:  # of this group: the others are copied
                self._uncopied[group] = str(error)
            if not whole and time.monotonic() > until:
                break
        if self._uncopied:
            group, why = next(iter(self._uncopied.items()))
            others = len(self._uncopied) - 1
            more = f", and those of {counted(others, 'other group')}" if others else ""
            raise KlammError(f"the offsets of group {group!r} are not copied{more}: {why}")
        if self._unlisted:
            raise KlammError(self._unlisted)

    def _ends(self) -> dict[TopicPartition, int]:
        """Returns the high watermarks of the partitions that are mirrors and that a broker serves."""
        image = self._services.cluster.image()
        mirrors = [
            TopicPartition(name, number)
            for name in self._topics
            if (topic := image.topics.get(name)) is not None
            for number, partition in topic.partitions.items()
            if partition.state.mirror == self.name
        ]
        if not mirrors:
            return {}
        served, _ = self._own.list_served_offsets(dict.fromkeys(mirrors, LATEST), timeout_s=_SOURCE_S)
        return served

    def _copy_group(self, group: str, ends: Mapping[TopicPartition, int]) -> None:
        here = {node.source: name for name, node in self._topics.items()}
        there = {
            TopicPartition(here[tp.topic], tp.partition): found
            for tp, found in self._source.fetch_offsets(group, timeout_s=_SOURCE_S).items()
            if tp.topic in here
        }
        source = {tp: GroupOffset(found.offset, found.leader_epoch) for tp, found in there.items()}
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
            if topic in self._topics
        }
        plan = offsets_to_copy(source, target, copied, ends, self._members(group))
        replaced = self._replaced(
            {self._topics[tp.topic].source: self._topics[tp.topic].topic_id for tp in plan.commits}
        )
        if replaced:  # the source's offsets are those of records that are not here
            source = {tp: found for tp, found in source.items() if self._topics[tp.topic].source not in replaced}
            plan = offsets_to_copy(source, target, copied, ends, self._members(group))
        if not plan.commits and plan.copied == copied:
            return
        offsets: dict[str, dict[int, Any]] = {}
        for tp, known in plan.copied.items():
            offsets.setdefault(tp.topic, {})[tp.partition] = tuple(tuple(each) for each in known)
        update(self._coordination, path, CopiedNode, lambda _: CopiedNode(offsets=offsets))
        commits = {tp: there[tp] for tp in plan.commits}
        if not commits:  # a later commit of a value that was copied before is the group's own
            return
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
        if self._failed.get(_TOPICS_HERE):  # what is stored of them would be lost
            return
        partitions: dict[str, dict[int, PartitionReport]] = {}
        for tp, report in self.fetches.reports().items():
            partitions.setdefault(tp.topic, {})[tp.partition] = report
            self._forget_decision(tp, report)
        path = report_path(self.name, self._services.broker_id)
        before = self._reported or read_reports(self._coordination, self.name).get(self._services.broker_id)
        ends = {topic_id: dict(known) for topic_id, known in before.source_ends.items()} if before is not None else {}
        complete = (
            {topic: dict(known) for topic, known in before.complete_until_ms.items()} if before is not None else {}
        )
        for tp, minute_ms in self.fetches.complete_until_ms().items():
            complete.setdefault(tp.topic, {})[tp.partition] = minute_ms
        for topic, reports in partitions.items():
            known = {number: report.source_end for number, report in reports.items() if report.source_end >= 0}
            if topic in self._topics:
                ends.setdefault(self._topics[topic].topic_id, {}).update(known)
        mirrored = {node.topic_id for node in self._topics.values()}
        own = self._services.cluster.own_registration
        found = ReportNode(
            partitions=partitions, refused=self._refused if self._controls else {},
            left_out=self._left_out if self._controls else {}, problem=self.problem or self.fetches.failure,
            broker_epoch=NO_EPOCH if own is None else own.epoch,
            source_ends={topic_id: known for topic_id, known in ends.items() if topic_id in mirrored},
            complete_until_ms={topic: known for topic, known in complete.items() if topic in self._topics},
        )  # fmt: skip
        if found != self._reported:
            update(self._coordination, path, ReportNode, lambda _: found)
            self._reported = found

    def _forget_decision(self, tp: TopicPartition, report: PartitionReport) -> None:
        """Removes a decision about STALE once it was followed. Nothing in the log says that a later stop at the same
        record is another one, as it does after a gap or a divergence."""
        node = self._topics.get(tp.topic)
        made = None if node is None else node.decisions.get(tp.partition)
        if made is None or made[0] != MirrorStatus.STALE.value or report.status != MirrorStatus.FOLLOWING.value:
            return

        def without(known: MirrorTopicNode) -> MirrorTopicNode:
            left = {number: each for number, each in known.decisions.items() if (number, each) != (tp.partition, made)}
            return known.model_copy(update={"decisions": left})

        self._change_topic(tp.topic, without)


def _with_cut(cut: MirrorCut, node: MirrorTopicNode) -> MirrorTopicNode:
    return node if cut in node.cuts else node.model_copy(update={"cuts": (*node.cuts, cut)})


def groups_of(client: ClusterClient) -> tuple[set[str], str]:
    """Returns the groups with classic members or with offsets, and the reason why a broker's groups are missing, empty
    if none are. A broker that does not answer does not hold up the groups of the others."""
    found, problem = set[str](), ""
    for node_id in client.metadata((), timeout_s=_SOURCE_S).nodes:
        try:
            message = client.call(ApiKey.LIST_GROUPS, node_id, timeout_s=_SOURCE_S, states_filter=(), types_filter=())
            if message.error_code != ErrorCode.none:
                raise BrokerError(message.error_code, "it cannot list them")
            found.update(group.group_id for group in message.groups)
        except KlammError as error:
            problem = f"the groups of broker {node_id} of the source are not copied: {describe_failure(error)}"
    return found, problem
