"""One broker: starts its parts from the settings until it is ready, and stops them in the opposite order.

Start: bind the ports; lock and load the log directory; open the coordination; register, and become or learn of the
controller; lead the partitions of the cluster's image; only then accept connections. A start that fails undoes what it
did and raises one clear error.

Stop: accept no more connections; answer received requests, for `shutdown.drain.timeout.ms` at most; flush and close the
logs, with their checkpoints and the mark of a clean stop; only then leave the cluster, which may be slow to answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from random import randrange
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ..cluster.brokers.log_directory import LogDirectoryRecord
from ..cluster.brokers.registration import DisplacedError
from ..cluster.change_writer import name_of_writer
from ..cluster.cluster import Cluster
from ..cluster.image import ClusterImage, Endpoint
from ..cluster.image_reader import read_image
from ..cluster.restored import check_history
from ..cluster.tree.bootstrap import create_base_paths
from ..cluster.tree.steps import run_steps
from ..config.address import ListenerAddress
from ..config.describe import kafka_keys_in
from ..config.limits import LONG_MAX
from ..config.sections.broker import BrokerConfig
from ..config.sections.topic import TopicConfig
from ..config.settings import Settings
from ..errors import ConfigError, KlammError
from ..groups.offsets_topic import OFFSETS_TOPIC
from ..interfaces.coordination import Coordination
from ..interfaces.offsets import OffsetsTopicSettings, OffsetsTopicStore, OffsetStore
from ..log.cleanup.cleaner import Cleaner, CleanerConfig
from ..log.cleanup.scrubber import Scrubber, ScrubConfig
from ..log.log_directory import read_meta
from ..log.manager import LogManager, LogTuning
from ..log.recovery.missing_logs import KnownPast
from ..log.state.last_start import LastStart
from ..log.state.seen_metadata import SeenMetadata
from ..log.state.steady_clock import elapsed_ms
from ..process_log import ProcessLog
from ..protocol.software import THIRD_PARTY_CODECS
from ..records.partition import TopicPartition, counted, some_of
from ..replication.fetch_sessions import FetchSessionCache
from ..replication.registrations import DOUBTED
from ..transport.address import Address
from ..transport.interface import Accept
from ..transport.plaintext_transport import accept_plaintext
from .access import AccessControl
from .background.background_services import BackgroundServices
from .background.maintenance import BrokerMaintenance
from .coordinator.coordinator_topic import CoordinatorTopic
from .coordinator.group_service import GroupService
from .coordinator.topic_deletions import TopicDeletions
from .dynamic_config.live_config import LiveConfig
from .dynamic_config.reload import Reloader, ReloadOutcome
from .handlers.authentication import Authentication
from .handlers.dispatch import Dispatcher
from .handlers.fetch import session_weight
from .handlers.metering import metered
from .handlers.produce import produce_fast
from .handlers.table import APIS
from .internal_topics import ensure_topic
from .metrics.counters import BrokerMetrics, BrokerState
from .mirror.mirror_service import MirrorService
from .network import file_descriptors as descriptors
from .network.connections import Connections
from .network.limits import Limits
from .network.listener import Listener, advertised
from .producer_ids import ProducerIds
from .refused_batches import PURGE_INTERVAL_S, RefusedBatches
from .replication.fetchers import Fetchers
from .replication.follower_fetches import FollowerFetches
from .replication.full_disk import FullDisk
from .replication.isr_changes import IsrChanges
from .replication.new_leaders import NewLeaders
from .replication.partitions import Partitions
from .replication.replica_fetcher import FetcherSettings
from .replication.role_changes import RoleChanges
from .replication.suspicions import Suspicions, is_reachable
from .replication.throttles import ReplicationThrottles
from .request import Dispatch
from .service_context import LocalBrokerContext
from .services import Services
from .session.lease import Lease
from .validation import Validation
from .workers import Workers

if TYPE_CHECKING:
    from .background.consumer_lag import ConsumerLag

__all__ = ["Broker"]

log = logging.getLogger(__name__)

_ACCEPTS: Mapping[str, Accept] = {"PLAINTEXT": accept_plaintext}
_HAND_OVER_S = 10
_SESSION_EVICTION_MS = 120_000.0
"""How old a fetch session is before one of another client may replace it, as in Kafka."""
_NO_ANSWER_S = 2.0
"""Seconds for which a stopping broker waits for a coordination that does not answer."""
_POLL_S = 0.02


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _cleaner_config(config: BrokerConfig) -> CleanerConfig:
    return CleanerConfig(
        config.log_cleaner_threads,
        config.log_cleaner_dedupe_buffer_size,
        config.log_cleaner_io_max_bytes_per_second,
        config.log_cleaner_backoff_ms,
    )


def _partitions_on(image: ClusterImage, broker_id: int) -> list[TopicPartition]:
    """Returns the partitions that must have a log on this broker. A replica that is being added need not have one:
    if the broker was killed, or its disk was full, its first directory was not made. Once it is in sync, it has one."""
    return [
        TopicPartition(topic.name, number)
        for topic in image.topics.values()
        for number, found in topic.partitions.items()
        if broker_id in found.replicas and (broker_id not in found.adding_replicas or broker_id in found.state.members)
    ]


def _data_ids_of(image: ClusterImage, broker_id: int) -> list[str]:
    """Returns the data ids by which the partition states know this broker's replicas, each once."""
    found = {
        state.state.data_ids[broker_id]: None
        for topic in image.topics.values()
        for state in topic.partitions.values()
        if state.state.data_ids.get(broker_id, DOUBTED) != DOUBTED
    }
    return list(found)


async def _no_answer(cluster: Cluster) -> None:
    """Returns once the coordination has not answered for `_NO_ANSWER_S`; logs at once that it does not answer."""
    while True:
        while not cluster.is_unavailable:
            await asyncio.sleep(_POLL_S)
        log.warning(
            "the coordination does not answer: waiting up to %g s for it, to move partitions to other brokers",
            _NO_ANSWER_S,
        )
        until = time.monotonic() + _NO_ANSWER_S
        while cluster.is_unavailable:
            if time.monotonic() >= until:
                return
            await asyncio.sleep(_POLL_S)


def _begun_epochs(image: ClusterImage, broker_id: int, logs: LogManager) -> dict[TopicPartition, int]:
    """Returns the highest leader epoch in each log that is ahead of the cluster, of partitions that this broker
    leads, which then uses a higher one.

    With its registration every partition that it leads has got a new leader epoch (docs/replication.md, R8): its
    logs may differ from what clients have read, since they may have lost their end in a crash, or have been restored
    from a backup. If a log is ahead, the coordination was restored.
    """
    begun: dict[TopicPartition, int] = {}
    led = 0
    own = image.brokers.get(broker_id)
    own_epoch = None if own is None else own.epoch  # what it does not lead under this registration is elected first
    for topic in image.topics.values():
        for number, state in topic.partitions.items():
            if state.leader == broker_id and state.state.leader_broker_epoch == own_epoch:
                tp = TopicPartition(topic.name, number)
                found = logs.get(tp)
                led += 1
                if found is not None and found.leader_epoch >= state.leader_epoch:
                    begun[tp] = found.leader_epoch
    if led and logs.missing.is_older:
        log.warning(
            "%s is older than the coordination (restored from a backup?): new leader epochs for %s",
            logs.directory, counted(led, "partition"),
        )  # fmt: skip
    return begun


class Broker:
    """Made on a running event loop; `await start()`, `await stop()` in any state, each once."""

    def __init__(
        self,
        settings: Settings,
        process_log: ProcessLog | None = None,
        *,
        accept_missing_logs: bool = False,
        accepts: Mapping[str, Accept] | None = None,
        around_dispatch: Callable[[Dispatch], Dispatch] | None = None,
    ) -> None:
        """`process_log` takes new levels from a reloaded file and from admin clients (KIP-412). `accept_missing_logs`:
        partitions whose logs are missing start again at offset 0. `accepts`: by the listener's security protocol, the
        function that wraps accepted sockets in a transport. `around_dispatch` may put another dispatch in front of the
        broker's, as `klamm.testing` does for its faults."""
        self._settings = settings
        self._around_dispatch = around_dispatch
        self._accept_missing_logs = accept_missing_logs
        self._accepts = accepts or _ACCEPTS
        self._process_log = process_log
        self._live = LiveConfig(settings.broker, kafka_keys_in(settings.offsets.config))
        self._reloader: Reloader | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._services: Services | None = None
        self._stack = AsyncExitStack()
        self._membership = AsyncExitStack()
        self._listeners: list[Listener] = []
        self.metrics = BrokerMetrics()
        self._connections = Connections(Limits.of_config(self._config), self.metrics)
        self._codecs = settings.codec_table()
        self.advertised: list[ListenerAddress] = []
        self.failed: asyncio.Future[KlammError] = asyncio.get_running_loop().create_future()
        """The error for which this broker has stopped serving by itself; None otherwise."""
        self.state = BrokerState.STARTING

    @property
    def _config(self) -> BrokerConfig:
        """The configuration in force."""
        return self._live.current

    async def reload(self, file: Path) -> ReloadOutcome:
        """Reads the file again, once started; errors in the file are in the outcome, and nothing has then changed."""
        assert self._reloader is not None, "start first"
        return await self._reloader.reload(file)

    async def start(self) -> None:
        """Starts the broker. Raises `KlammError` in one line if it cannot start; everything started so far is then
        stopped."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Hands over what this broker leads, answers running requests, closes the logs cleanly, and leaves the
        cluster."""
        services = self._services
        if self.state is not BrokerState.FAILED:
            self.state = BrokerState.STOPPING
        if services is not None:
            if not self.failed.done():
                await self._hand_over(services)
            services.cluster.retire()
        await self._stack.aclose()

    async def _hand_over(self, services: Services) -> None:
        """Lets the controller move leaders off this broker and take it out of in-sync replicas, while it still
        serves (Kafka's controlled shutdown). Stops waiting after a time, and sooner if the coordination does not
        answer: other brokers then take over once it has left."""
        cluster = services.cluster
        if not self._config.controlled_shutdown_enable or len(cluster.image().brokers) < 2:
            return
        left = asyncio.create_task(self._handed_over(services))
        unanswered = asyncio.create_task(_no_answer(cluster))
        try:
            await asyncio.wait((left, unanswered), timeout=_HAND_OVER_S, return_when=asyncio.FIRST_COMPLETED)
            if left.done():
                left.result()
            elif unanswered.done():
                log.warning(
                    "this broker stops without moving its partitions to others: the coordination does not answer"
                )
            else:
                log.warning(
                    "some partitions could not be moved to other brokers in %d s; the broker stops all the same",
                    _HAND_OVER_S,
                )
        except KlammError as error:
            log.warning("this broker stops without moving its partitions to others: %s", error)
        finally:
            left.cancel()
            unanswered.cancel()

    async def _handed_over(self, services: Services) -> None:
        cluster = services.cluster
        await services.workers.coordination(cluster.set_leaving)
        while not cluster.has_left():
            await asyncio.sleep(_POLL_S)

    async def _start(self) -> None:
        workers = Workers(self._config.num_io_threads)
        self._stack.callback(workers.close)
        self._reloader = Reloader(self._settings, self._live, workers, self._process_log)
        self._bind()
        coordination = await self._open_coordination(workers)
        record = LogDirectoryRecord(coordination, self._config.broker_id)
        logs = await self._open_logs(workers, coordination, record)
        cluster = await self._join(workers, coordination, logs)
        offsets = self._settings.make_offset_store(coordination)
        self._stack.push_async_callback(workers.coordination, offsets.close)
        lease = self._lease(workers, coordination, cluster)
        services = await self._assemble(workers, logs, coordination, cluster, lease, offsets)
        await self._note_start(services, record)
        coordination.on_session(self.metrics.session)
        self._watch_config(services)
        self._maintain(services, logs)
        own = self.advertised[0]
        context = LocalBrokerContext(services, coordination, offsets, Address(own.host, own.port))
        self._stack.push_async_callback(workers.disk, context.close)
        services.validation.start(context)
        background = BackgroundServices()
        lag = await self._serve_metrics(services, logs, background)
        dispatch = self._dispatch(services)
        self._stack.push_async_callback(self._drain, services)
        services.groups.start()
        self._connections.start()
        for listener in self._listeners:
            listener.dispatch = dispatch
            await listener.start()
        services.deletions.start()
        self._stack.push_async_callback(services.deletions.stop)
        await self._start_background(background, services, context, lag)
        self._services = services
        self.state = BrokerState.SERVING
        log.info("broker %d serves %s", self._config.broker_id, ", ".join(map(str, self.advertised)))
        if self._config.without_effect:
            log.info("keys of Kafka that are set and have no effect here: %s", ", ".join(self._config.without_effect))

    # -- the parts, in order

    def _bind(self) -> None:
        protocols = self._config.security_protocols()
        for address in self._config.bound():
            accept = self._accepts.get(protocols[address.name])
            if accept is None:
                raise ConfigError(
                    f"listener.security.protocol.map: {address.name}:{protocols[address.name]} is not served;"
                    f" give the listener {' or '.join(sorted(self._accepts))}"
                )
            listener = Listener(address.name, address.host, address.port, self._connections, accept)
            listener.bind()
            self._stack.callback(listener.close)
            self._listeners.append(listener)
        self.advertised = advertised(self._config.advertised(), {x.name: x.port for x in self._listeners})

    def _dispatch(self, services: Services) -> Dispatch:
        """Returns the dispatch of new connections. Only that of an authenticated client is metered."""
        dispatcher: Dispatch = Dispatcher(services, APIS, produce_fast)
        if self._around_dispatch is not None:
            dispatcher = self._around_dispatch(dispatcher)
        rate = self._config.max_connection_bytes_per_second
        authenticated = dispatcher if rate == LONG_MAX else metered(dispatcher, rate)
        authenticator = self._settings.make_authenticator()
        if authenticator is None:
            return authenticated
        return Authentication(authenticator, APIS, dispatcher, authenticated)

    async def _open_coordination(self, workers: Workers) -> Coordination:
        coordination = self._settings.make_coordination()
        await workers.coordination(coordination.start)
        self._stack.push_async_callback(workers.coordination, coordination.close)
        self._stack.push_async_callback(self._membership.aclose)
        return coordination

    async def _open_logs(self, workers: Workers, coordination: Coordination, record: LogDirectoryRecord) -> LogManager:
        """Opens the logs. The cluster's id and the topics' configurations are read before this broker is a member: it
        must lock its log directory first.
        """
        await workers.coordination(create_base_paths, coordination, uuid4)
        image = await workers.coordination(read_image, coordination, None)
        await self._check_history(workers, coordination, image.cluster_id)
        self._live.begin(image.broker_config(None), image.broker_config(self._config.broker_id))
        self._connections.apply(Limits.of_config(self._config))
        known = await workers.coordination(record.read)
        topics = image.topics.values()
        topic_ids = {topic.name: topic.topic_id for topic in topics}
        former_ids = {topic.name: topic.former.topic_id for topic in topics if topic.former is not None}
        own = image.brokers.get(self._config.broker_id)
        registered_at = "" if own is None else str(Address(own.host, own.port))
        is_other = own is not None and all((own.host, own.port) != (a.host, a.port) for a in self.advertised)
        taken_id = self._config.broker_id if is_other else None
        last_start = LastStart(known.last_start, known.last_complete_start)
        past = KnownPast(last_start, record.created, topic_ids, former_ids, registered_at, taken_id)
        logs = await workers.disk(self._load_logs, image, past)
        self._stack.push_async_callback(workers.disk, logs.close)
        if self._config.log_cleaner_enable:
            await self._start_cleaner(workers, logs)
        if self._config.log_scrub_bytes_per_second:
            await self._start_scrubber(workers, logs)
        return logs

    async def _check_history(self, workers: Workers, coordination: Coordination, cluster_id: str) -> None:
        """Reports, before the logs are opened, that the coordination is older than this directory, if it is: opening
        may take longer than others wait. A directory of another broker or cluster, which proves nothing, is refused
        later."""
        directory = Path(self._config.log_dirs)
        meta = await workers.disk(read_meta, directory)
        if meta is not None and (meta.cluster_id, meta.broker_id) == (cluster_id, self._config.broker_id):
            seen = await workers.disk(SeenMetadata, directory)
            broker_id = self._config.broker_id
            checked = check_history(coordination, broker_id, seen.last, name_of_writer(broker_id))
            await workers.coordination(run_steps, coordination, checked)

    async def _start_scrubber(self, workers: Workers, logs: LogManager) -> None:
        config = ScrubConfig(self._config.log_scrub_bytes_per_second, self._config.log_scrub_interval_ms)
        scrubber = await workers.disk(Scrubber, logs, config, _clock_ms)
        scrubber.start()
        self._stack.push_async_callback(workers.disk, scrubber.stop)

    async def _start_cleaner(self, workers: Workers, logs: LogManager) -> None:
        cleaner = await workers.disk(Cleaner, logs, self._codecs, _cleaner_config(self._config), _clock_ms)
        cleaner.start()
        self._stack.push_async_callback(workers.disk, cleaner.stop)

        async def changed(config: BrokerConfig) -> None:
            await workers.disk(cleaner.reconfigure, _cleaner_config(config))

        self._live.on_change(changed)

    def _load_logs(self, image: ClusterImage, past: KnownPast) -> LogManager:
        defaults = self._config.topic_defaults()

        def config_for(topic: str) -> TopicConfig:
            known = image.topics.get(topic)
            return TopicConfig.from_strings(known.configs, defaults) if known else defaults

        return LogManager(
            self._config.log_dirs,
            broker_id=self._config.broker_id,
            cluster_id=image.cluster_id,
            codecs=self._codecs,
            config_for=config_for,
            clock=_clock_ms,
            producer_id_expiration_ms=self._config.producer_id_expiration_ms,
            tuning=LogTuning(
                self._config.num_recovery_threads_per_data_dir,
                self._config.log_flush_offset_checkpoint_interval_ms,
                self._config.log_verify_on_read,
                descriptors.for_logs(),
                decompressed_max_bytes=self._config.decompressed_max_bytes,
            ),
            elapsed=elapsed_ms,
            expected=_partitions_on(image, self._config.broker_id),
            accept_missing=self._accept_missing_logs,
            past=past,
            known_data=_data_ids_of(image, self._config.broker_id),
        )

    async def _join(self, workers: Workers, coordination: Coordination, logs: LogManager) -> Cluster:
        protocols = self._config.security_protocols()
        directory_id = str(logs.meta.directory_id)
        cluster = Cluster(
            coordination,
            self._config.broker_id,
            [Endpoint(own.host, own.port, own.name, protocols[own.name]) for own in self.advertised],
            data_ids=logs.data_ids,
            directory_id=directory_id,
            rack=self._config.broker_rack,
            highest_producer_id=logs.highest_producer_id,
            note_producer_id=logs.given_producer_ids.note,
            inter_broker_listener=self._config.inter_broker_listener_name or "",
            defaults=lambda: self._config.topic_defaults(),
            is_reachable=is_reachable,
            seen=await workers.disk(SeenMetadata, logs.directory),
            on_elected=self.metrics.elected,
        )
        await workers.coordination(cluster.register)
        self._membership.push_async_callback(workers.coordination, cluster.close)
        begun = _begun_epochs(cluster.image(), self._config.broker_id, logs)
        if begun:
            await workers.coordination(cluster.raise_leader_epochs, begun)
        return cluster

    async def _note_start(self, services: Services, record: LogDirectoryRecord) -> None:
        """Records the start, in the directory first: a directory that is behind the coordination counts as a
        restored one."""
        epoch, complete = services.cluster.broker_epoch, services.leadership.complete
        await services.workers.disk(services.logs.note_start, epoch, complete=complete)
        await services.workers.coordination(record.record_start, epoch, complete=complete)

    def _lease(self, workers: Workers, coordination: Coordination, cluster: Cluster) -> Lease:
        """Makes the lease: nothing is acknowledged while another broker may have this one's id, and this broker
        stops when it learns that one has."""
        loop = asyncio.get_running_loop()

        async def confirm() -> int | None:
            return await workers.coordination(cluster.confirm)

        def displaced(error: DisplacedError) -> None:
            loop.call_soon_threadsafe(self._fail, error)

        lease = Lease(coordination.session_timeout_s, confirm)
        coordination.on_session(lease.session)
        cluster.on_displaced(displaced)
        lease.start()
        self._stack.callback(lease.stop)
        return lease

    def _fail(self, error: KlammError) -> None:
        """Stops serving at once; the code that started this broker must stop it."""
        log.error("broker %d stops serving: %s", self._config.broker_id, error)
        self.state = BrokerState.FAILED
        for listener in self._listeners:
            listener.close()
        for connection in self._connections:
            connection.abort()
        if not self.failed.done():
            self.failed.set_result(error)

    async def _assemble(
        self,
        workers: Workers,
        logs: LogManager,
        coordination: Coordination,
        cluster: Cluster,
        lease: Lease,
        offsets: OffsetStore,
    ) -> Services:
        partitions = Partitions(self.metrics)
        suspicions = Suspicions(cluster, workers, lambda: leadership.image.brokers)
        self._stack.push_async_callback(suspicions.stop)
        throttles = ReplicationThrottles(lambda: self._config)
        self._live.on_change(throttles.configure)
        fetchers = Fetchers(
            self._config.broker_id,
            workers,
            self._fetcher_settings,
            throttles,
            lambda: cluster.broker_epoch,
            on_lost=suspicions.check,
            on_stale=lambda: leadership.refresh_soon(),
        )
        validation = Validation(
            self._settings.make_topic_validators(),
            self._codecs,
            self._config.decompressed_max_bytes,
            self._connections.worth_saying,
        )
        producer_ids = ProducerIds(cluster.allocate_producer_ids, workers)
        leadership = RoleChanges(
            lambda: self._config, cluster, logs, partitions, fetchers, workers, validation.applies_to,
            producer_ids.forget_block,
        )  # fmt: skip
        isr_changes = IsrChanges(
            cluster, partitions, leadership, workers, self.metrics, lambda: self._config.replica_lag_time_max_ms
        )
        fetch_sessions: FetchSessionCache[Any, Any] = FetchSessionCache(
            self._config.max_incremental_fetch_session_cache_slots,
            _SESSION_EVICTION_MS,
            lambda: randrange(1, 2**31),
            weight=session_weight,
        )
        follower_fetches = FollowerFetches(
            partitions,
            lambda: leadership.image,
            workers,
            lambda: self._config.replica_fetch_response_max_bytes,
            fetch_sessions,
            throttles,
            isr_changes.caught_up,
            suspicions.check,
        )
        isr_changes.start()
        self._stack.push_async_callback(isr_changes.stop)
        full_disk = FullDisk(logs.space, cluster, workers, leadership.has_space_again)
        full_disk.start()
        self._stack.push_async_callback(full_disk.stop)
        cluster.on_change(leadership.changed)
        self._stack.push_async_callback(leadership.stop)
        await leadership.refresh()

        async def create(name: str, partitions: int, replication_factor: int, configs: Mapping[str, str]) -> None:
            await ensure_topic(services, name, partitions, replication_factor, configs)

        settings = offsets.offsets_topic if isinstance(offsets, OffsetsTopicStore) else OffsetsTopicSettings()
        offsets_topic = CoordinatorTopic(
            OFFSETS_TOPIC, "offsets.topic", self._config.broker_id, cluster.image, partitions, settings, create,
            lambda: own.incarnation if (own := cluster.own_registration) is not None else "",
        )  # fmt: skip
        groups = GroupService(self._config, coordination, offsets, workers, cluster.image, offsets_topic, self._codecs)
        services = Services(
            config=self._config,
            live=self._live,
            advertised={a.name: (a.host, a.port) for a in self.advertised},
            cluster=cluster,
            lease=lease,
            leadership=leadership,
            fetch_sessions=fetch_sessions,
            follower_fetches=follower_fetches,
            new_leaders=NewLeaders(self._config.broker_id, partitions, lambda: leadership.image),
            logs=logs,
            partitions=partitions,
            groups=groups,
            deletions=TopicDeletions(cluster, workers, groups.cleanup.forget_topics),
            refused_batches=RefusedBatches(),
            producer_ids=producer_ids,
            validation=validation,
            access=AccessControl(self._settings.make_authorizer(), self._connections.worth_saying),
            codecs=self._codecs,
            workers=workers,
            metrics=self.metrics,
            memory=self._connections.memory,
            clock_ms=_clock_ms,
            third_party_codecs=THIRD_PARTY_CODECS & self._codecs.ids(),
            process_log=self._process_log,
        )
        self._stack.push_async_callback(services.new_leaders.stop)
        return services

    def _fetcher_settings(self) -> FetcherSettings:
        config = self._config
        return FetcherSettings(
            config.replica_fetch_wait_max_ms,
            config.replica_fetch_min_bytes,
            config.replica_fetch_max_bytes,
            config.replica_fetch_response_max_bytes,
            config.replica_fetch_backoff_ms,
            config.replica_socket_timeout_ms,
        )

    def _watch_config(self, services: Services) -> None:
        """Registers the listeners of changed values, and the source of the cluster's values."""
        loop, live = asyncio.get_running_loop(), self._live

        async def changed(config: BrokerConfig) -> None:
            services.config = config
            self._connections.apply(Limits.of_config(config))
            await services.leadership.use_defaults(config.topic_defaults())

        def overlay(image: ClusterImage) -> None:
            told = live.overlay(image.broker_config(None), image.broker_config(services.broker_id))
            task = loop.create_task(told)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        def soon(image: ClusterImage) -> None:
            loop.call_soon_threadsafe(overlay, image)

        live.on_change(changed)
        services.cluster.on_change(soon)
        overlay(services.cluster.image())

    def _maintain(self, services: Services, logs: LogManager) -> None:
        maintenance = BrokerMaintenance()
        config = self._config
        maintenance.every(
            config.log_flush_scheduler_interval_ms / 1000,
            "log maintenance",
            lambda: services.workers.disk(logs.run_maintenance, _clock_ms()),
        )
        maintenance.every(
            config.log_retention_check_interval_ms / 1000,
            "log retention",
            lambda: self._apply_retention(services, logs),
        )
        maintenance.every(
            config.offsets_retention_check_interval_ms / 1000,
            "expiry of offsets",
            lambda: services.groups.cleanup.expire_offsets(_clock_ms()),
        )
        if config.auto_leader_rebalance_enable:
            maintenance.every(
                config.leader_imbalance_check_interval_seconds,
                "preferred leaders",
                lambda: self._restore_leaders(services),
            )

        async def purge() -> None:
            services.refused_batches.purge()
            services.new_leaders.forget()

        maintenance.every(PURGE_INTERVAL_S, "refused batches", purge)
        self._stack.push_async_callback(maintenance.stop)

    async def _apply_retention(self, services: Services, logs: LogManager) -> None:
        """Applies retention. A follower's log start may then be above its leader's, which must not send consumers to
        it for the records between (KIP-392): it is reported to the leader."""
        await services.workers.disk(logs.apply_retention, _clock_ms())
        services.leadership.report_log_starts()

    async def _restore_leaders(self, services: Services) -> None:
        percentage = self._config.leader_imbalance_per_broker_percentage
        restored = await services.workers.coordination(services.cluster.restore_preferred_leaders, percentage)
        if restored:
            log.info("preferred leaders lead again: %s", some_of(restored))

    async def _serve_metrics(
        self, services: Services, logs: LogManager, background: BackgroundServices
    ) -> ConsumerLag | None:
        """Starts the metrics endpoint; prometheus-client is imported only if it is configured. Returns the service that
        computes the lag of groups for it."""
        if self._config.metrics_port < 0:
            return None
        from .background.consumer_lag import ConsumerLag
        from .health_check import HealthCheck
        from .metrics.endpoint import metrics_service, sample_loop_lag
        from .metrics_collector import registry
        from .watched import Watched

        lag = ConsumerLag(self._config.consumer_lag_interval_ms / 1000)
        watched = Watched(
            services.broker_id,
            self._connections,
            services.partitions,
            logs,
            services.cluster,
            services.groups,
            background,
            services.leadership,
            services.workers.appends,
            lag,
        )
        health = HealthCheck(watched, lambda: self.state)
        address = Address(self._config.metrics_host, self._config.metrics_port)
        service = metrics_service(address, registry(watched), health)
        service.start()
        log.info("metrics are served on %smetrics", service.url)
        self._stack.push_async_callback(services.workers.disk, service.stop)
        sampler = asyncio.get_running_loop().create_task(sample_loop_lag(self.metrics))
        self._stack.callback(sampler.cancel)
        return lag if self._config.consumer_lag_interval_ms else None

    async def _start_background(
        self, background: BackgroundServices, services: Services, context: LocalBrokerContext, lag: ConsumerLag | None
    ) -> None:
        """Starts the services. The audit's follower starts first, so that it stops last and counts everything."""
        self._stack.push_async_callback(background.stop)
        audit = self._settings.make_audit()
        if audit is not None:
            await background.start("audit", audit.broker(context))
        if lag is not None:
            await background.start("consumer-lag", lag.of(context))
        await background.start("mirrors", MirrorService(services, context))
        for name, service in self._settings.make_services(context):
            await background.start(name, service)

    async def _drain(self, services: Services) -> None:
        """Accepts no more connections, answers parked requests, finishes running ones, and closes every connection."""
        for listener in self._listeners:
            listener.close()
        services.partitions.close()
        grace_ms = self._config.shutdown_drain_timeout_ms
        cut_off, _ = await asyncio.gather(self._connections.stop(grace_ms / 1000), services.groups.stop())
        if cut_off:
            log.warning(
                "closed %s that did not read their responses in %d ms", counted(cut_off, "connection"), grace_ms
            )
