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
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

from ..cluster.brokers.log_directory import LogDirectoryRecord
from ..cluster.brokers.registration import DisplacedError
from ..cluster.cluster import Cluster
from ..cluster.image import ClusterImage, Endpoint
from ..cluster.image_reader import read_image
from ..cluster.tree.bootstrap import create_base_paths
from ..config.address import ListenerAddress
from ..config.sections.broker import BrokerConfig
from ..config.sections.topic import TopicConfig
from ..config.settings import Settings
from ..errors import KlammError
from ..interfaces.coordination import Coordination, SessionEvent
from ..interfaces.offsets import OffsetStore
from ..log.cleanup.cleaner import Cleaner, CleanerConfig
from ..log.cleanup.scrubber import Scrubber, ScrubConfig
from ..log.manager import LogManager, LogTuning
from ..log.recovery.missing_logs import KnownPast
from ..log.state.steady_clock import elapsed_ms
from ..process_log import ProcessLog
from ..protocol.software import THIRD_PARTY_CODECS
from ..records.partition import TopicPartition
from ..transport.interface import Accept
from ..transport.plaintext_transport import accept_plaintext
from .access import AccessControl
from .background.background_services import BackgroundServices
from .background.maintenance import BrokerMaintenance
from .background.service_context import LocalBrokerContext
from .coordinator.group_service import GroupService
from .coordinator.topic_deletions import TopicDeletions
from .dynamic_config.live_config import LiveConfig
from .dynamic_config.reload import Reloader, ReloadOutcome
from .handlers.produce import produce_fast
from .handlers.table import HANDLERS
from .leadership import Leadership
from .metrics.counters import BrokerMetrics
from .network import file_descriptors as descriptors
from .network.connections import Connections
from .network.dispatch import Dispatcher
from .network.limits import Limits
from .network.listener import Listener, advertised
from .partitions import Partitions
from .producer_ids import ProducerIds
from .services import Services
from .session.lease import Lease
from .validation import Validation
from .workers import Workers

__all__ = ["Broker"]

log = logging.getLogger(__name__)


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
    return [
        TopicPartition(topic.name, number)
        for topic in image.topics.values()
        for number, state in topic.partitions.items()
        if broker_id in state.replicas
    ]


def _begun_epochs(image: ClusterImage, broker_id: int, logs: LogManager) -> dict[TopicPartition, int]:
    """Returns the highest leader epoch that has begun of each partition that this broker leads; at its start it uses a
    higher one.

    Its logs may differ from what clients have read: they may have lost their end in a crash, or have been restored from
    a backup, and the coordination with them. Without a new epoch they would grow past offsets of the lost history, and
    no client could detect it.
    """
    begun = {}
    for topic in image.topics.values():
        for number, state in topic.partitions.items():
            if state.leader == broker_id:
                tp = TopicPartition(topic.name, number)
                found = logs.get(tp)
                begun[tp] = max(state.leader_epoch, -1 if found is None else found.leader_epoch)
    if begun and logs.missing.is_older:
        log.warning(
            "%s is older than the coordination (restored from a backup?): %d partitions get new leader epochs",
            logs.directory, len(begun),
        )  # fmt: skip
    return begun


class Broker:
    """Made on a running event loop; `await start()`, `await stop()` in any state, once."""

    def __init__(
        self,
        settings: Settings,
        process_log: ProcessLog | None = None,
        *,
        accept_missing_logs: bool = False,
        accept: Accept = accept_plaintext,
    ) -> None:
        """`process_log` follows the file when that is reloaded, and admin clients (KIP-412). `accept_missing_logs`:
        partitions whose logs are missing begin again at offset 0. `accept` puts accepted sockets under a transport.
        """
        self._settings = settings
        self._accept_missing_logs = accept_missing_logs
        self._accept = accept
        self._process_log = process_log
        self._live = LiveConfig(settings.broker)
        self._reloader: Reloader | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stack = AsyncExitStack()
        self._membership = AsyncExitStack()
        self._listeners: list[Listener] = []
        self.metrics = BrokerMetrics()
        self._connections = Connections(Limits.of_config(self._config), self.metrics)
        self._codecs = settings.codec_table()
        self.advertised: list[ListenerAddress] = []
        self.failed: asyncio.Future[KlammError] = asyncio.get_running_loop().create_future()
        """The error for which this broker has stopped serving by itself; None otherwise."""

    @property
    def _config(self) -> BrokerConfig:
        """The configuration in force."""
        return self._live.current

    async def reload(self, file: Path) -> ReloadOutcome:
        """Reads the file again, once started; its errors are in the outcome, and nothing has then changed."""
        assert self._reloader is not None, "start first"
        return await self._reloader.reload(file)

    async def start(self) -> None:
        """Starts the broker. Raises `KlammError` in one line if it cannot start; what was begun is undone."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Answers running requests, closes the logs cleanly, and leaves the cluster."""
        await self._stack.aclose()

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
        self._watch_session(coordination, services)
        self._watch_config(services)
        self._maintain(services, logs)
        background = BackgroundServices()
        await self._serve_metrics(services, logs, background)
        dispatcher = Dispatcher(services, HANDLERS, produce_fast)
        self._stack.push_async_callback(self._drain, services)
        services.groups.start()
        self._connections.start()
        for listener in self._listeners:
            listener.dispatch = dispatcher
            await listener.start()
        services.deletions.start()
        self._stack.push_async_callback(services.deletions.stop)
        await self._start_background(background, services, offsets)
        log.info("broker %d serves %s", self._config.broker_id, ", ".join(map(str, self.advertised)))

    # -- the parts, in order

    def _bind(self) -> None:
        for address in self._config.bound():
            listener = Listener(address.name, address.host, address.port, self._connections, self._accept)
            listener.bind()
            self._stack.callback(listener.close)
            self._listeners.append(listener)
        self.advertised = advertised(self._config.advertised(), {x.name: x.port for x in self._listeners})

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
        self._live.begin(image.broker_config(None), image.broker_config(self._config.broker_id))
        self._connections.apply(Limits.of_config(self._config))
        known = await workers.coordination(record.read)
        past = KnownPast(known.last_start, record.created)
        logs = await workers.disk(self._load_logs, image, past)
        self._stack.push_async_callback(workers.disk, logs.close)
        if self._config.log_cleaner_enable:
            await self._start_cleaner(workers, logs)
        if self._config.log_scrub_bytes_per_second:
            await self._start_scrubber(workers, logs)
        return logs

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
        )

    async def _join(self, workers: Workers, coordination: Coordination, logs: LogManager) -> Cluster:
        own = self.advertised[0]
        cluster = Cluster(
            coordination,
            self._config.broker_id,
            Endpoint(own.host, own.port, own.name),
            directory_id=str(logs.meta.directory_id),
            rack=self._config.broker_rack,
            highest_producer_id=logs.highest_producer_id,
            note_producer_id=logs.given_producer_ids.note,
        )
        await workers.coordination(cluster.register)
        self._membership.push_async_callback(workers.coordination, cluster.close)
        begun = _begun_epochs(cluster.image(), self._config.broker_id, logs)
        if begun:
            await workers.coordination(cluster.raise_leader_epochs, begun)
        return cluster

    async def _note_start(self, services: Services, record: LogDirectoryRecord) -> None:
        """Records the start, in the directory first: a directory that is behind the coordination is taken for a
        restored one.
        """
        if services.leadership.complete:
            epoch = services.cluster.broker_epoch
            await services.workers.disk(services.logs.note_start, epoch)
            await services.workers.coordination(record.record_start, epoch)

    def _lease(self, workers: Workers, coordination: Coordination, cluster: Cluster) -> Lease:
        """Makes the lease: nothing is acknowledged while another broker may have this one's id, and a broker that knows
        so stops.
        """
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
        """Stops serving at once; the code that started this broker is to stop it."""
        log.error("broker %d stops serving: %s", self._config.broker_id, error)
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
        defaults = self._config.topic_defaults()
        leadership = Leadership(self._config.broker_id, cluster, logs, partitions, workers, defaults)
        cluster.on_change(leadership.changed)
        self._stack.push_async_callback(leadership.stop)
        await leadership.refresh()
        limit = self._config.decompressed_max_bytes
        groups = GroupService(self._config, coordination, offsets, workers, cluster.image)
        return Services(
            config=self._config,
            live=self._live,
            advertised={a.name: (a.host, a.port) for a in self.advertised},
            cluster=cluster,
            lease=lease,
            leadership=leadership,
            logs=logs,
            partitions=partitions,
            groups=groups,
            deletions=TopicDeletions(cluster, workers, groups.forget_topics),
            producer_ids=ProducerIds(cluster.allocate_producer_ids, workers),
            validation=Validation(self._settings.make_topic_validators(), self._codecs, limit),
            access=AccessControl(
                self._settings.make_authenticator(), self._settings.make_authorizer(), self._connections.worth_saying
            ),
            codecs=self._codecs,
            workers=workers,
            metrics=self.metrics,
            memory=self._connections.memory,
            clock_ms=_clock_ms,
            third_party_codecs=THIRD_PARTY_CODECS & self._codecs.ids(),
            process_log=self._process_log,
        )

    def _watch_session(self, coordination: Coordination, services: Services) -> None:
        """Acquires the protocol locks of classic groups again whenever the coordination has a new session."""
        loop = asyncio.get_running_loop()
        session = coordination.session_id
        tasks: set[asyncio.Task[None]] = set()

        def look() -> None:
            nonlocal session
            if coordination.session_id not in (0, session):
                session = coordination.session_id
                task = loop.create_task(services.groups.reacquire_locks())
                tasks.add(task)
                task.add_done_callback(tasks.discard)

        def on_event(event: SessionEvent) -> None:
            self.metrics.session(event)
            if event is SessionEvent.CONNECTED:
                loop.call_soon_threadsafe(look)

        coordination.on_session(on_event)

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
            lambda: services.workers.disk(logs.apply_retention, _clock_ms()),
        )
        maintenance.every(
            config.offsets_retention_check_interval_ms / 1000,
            "expiry of offsets",
            lambda: services.groups.expire_offsets(_clock_ms()),
        )
        self._stack.push_async_callback(maintenance.stop)

    async def _serve_metrics(self, services: Services, logs: LogManager, background: BackgroundServices) -> None:
        """Starts the metrics endpoint; prometheus-client is imported only if it is configured."""
        if self._config.metrics_port < 0:
            return
        from .metrics.collector import Watched, registry
        from .metrics.endpoint import MetricsEndpoint, sample_loop_lag

        watched = Watched(
            services.broker_id,
            self._connections,
            services.partitions,
            logs,
            services.cluster,
            services.groups,
            background,
        )
        endpoint = MetricsEndpoint(self._config.metrics_host, self._config.metrics_port, registry(watched))
        endpoint.start()
        self._stack.push_async_callback(services.workers.disk, endpoint.close)
        sampler = asyncio.get_running_loop().create_task(sample_loop_lag(self.metrics))
        self._stack.callback(sampler.cancel)

    async def _start_background(self, background: BackgroundServices, services: Services, offsets: OffsetStore) -> None:
        """Starts the services. The audit's follower is the first, so that those of plugins are stopped before it counts
        for the last time.
        """
        own = self.advertised[0]
        context = LocalBrokerContext(services, offsets, (own.host, own.port))
        self._stack.push_async_callback(background.stop)
        audit = self._settings.make_audit()
        if audit is not None:
            await background.start("audit", audit.broker(context))
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
            log.warning("cut off %d connections that did not take their answers in %d ms", cut_off, grace_ms)
