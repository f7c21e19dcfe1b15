"""The parts that the campaigns of `make faults-load` share: a real HDFS and broker, drivers with real Spark, and the
truth.

HDFS, the broker and the drivers serve one campaign after another; a driver lives until a fault ends it. A `Scene`
belongs to one campaign: it has its own topic and lake. `Scene.check` compares the lake with the produced records: the
proof of `klamm lake verify`, and each row by partition, offset and bytes.
"""

from __future__ import annotations

import io
import json
import os
import queue
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol, Self

import psutil
import pyarrow.parquet as pq
import requests
import yaml
from confluent_kafka import KafkaError, Message, Producer
from hdfs import HdfsError, InsecureClient

from harness import Result, Run
from klamm.hadoop.hdfs.server import HdfsPorts, HdfsServer
from klamm.hadoop.lake.files import LakeFiles, lake_files
from klamm.hadoop.lake.layout import OFFSETS, TopicLayout, is_data, load_number
from klamm.hadoop.lake.verification.verify import verify_topic
from klamm.plugins.coordination.zookeeper.server import ZooKeeperServer
from klammtest.broker import ENVIRONMENT, RunningBroker, running_broker
from klammtest.ports import free_port
from klammtest.proxies.lost_answers import AnswerLostProxy, holding, is_fetch
from klammtest.waiting import eventually, within

SINK, PARTITIONS = "lake", 3
RECORDS = 90
"""Approximate number of records that are produced for each load."""
POINTS = ("load.planned", "load.written", "load.staged", "load.published")
FULL, QUICK = 20, 2
LOST, DOUBLED = "lost", "doubled"
"""Plants: a data file of the newest load is deleted, or copied."""
USER = "loader"
"""The user who loads and owns the lake. It is not HDFS's superuser, to whom HDFS refuses nothing."""
ANSWER_S = 900.0
"""Seconds that a driver may take between two lines: it starts Spark, and waits for servers that are down."""
UP_S = 400.0
"""Limit for the start of a server, on a busy machine."""
# A killed process loses nothing that it wrote to the kernel.
_HDFS = {"dfs.namenode.edits.noeditlogchannelflush": "true"}
_SPARK = {
    "spark.sql.shuffle.partitions": "2",
    # A server is down for seconds: requests give up on it before ten of them, the default.
    "spark.hadoop.ipc.client.connect.max.retries": "3",
    "spark.hadoop.ipc.client.connect.retry.interval": "500",
}
_DAEMON = "klamm.hadoop.worker_daemon"
_DRIVER = Path(__file__).with_name("driver.py")
_FAULTS = Path(__file__).parents[1]


class DriverDiedError(Exception):
    """The driver's process ended instead of answering."""


class Driver:
    """A process of `driver.py`, for one thread. `scene` is the scene that uses it now."""

    def __init__(self, log: Path, environment: Mapping[str, str]) -> None:
        path = os.pathsep.join((str(_FAULTS), ENVIRONMENT["PYTHONPATH"]))
        with log.open("ab") as err:
            self._process = subprocess.Popen(
                [sys.executable, str(_DRIVER)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True,
                env={**ENVIRONMENT, "PYTHONPATH": path, **environment},
            )  # fmt: skip
        self.scene: object = None
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self._log = log
        self.hear("ready")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_silent(self) -> bool:
        """True if all printed lines have been read."""
        return self._lines.empty()

    def load_by(self, config: Path) -> None:
        """Sets the configuration of later runs and removes the plants; Spark keeps running."""
        self._tell({"do": "load_by", "config": str(config), "sink": SINK})
        self.hear("ok")

    def run(self, *stop_at: str, rules: str = "") -> None:
        """Begins a run; `hear` returns its events."""
        self._tell({"do": "run", "stop_at": stop_at, "rules": rules})

    def go(self) -> None:
        self._tell({"do": "go"})

    def plant(self, what: str) -> None:
        self._tell({"do": "plant", "what": what})
        self.hear("ok")

    def clocks(self) -> list[float]:
        """Returns the times of the wall clocks of the driver and of its JVM, in seconds since the epoch."""
        self._tell({"do": "clocks"})
        told: list[float] = self.hear("clocks")
        return told

    def safe_mode(self, user: str, *, on: bool) -> None:
        """Enters or leaves the NameNode's safe mode as that user."""
        self._tell({"do": "safe_mode", "user": user, "on": on})
        self.hear("ok")

    def hear(self, what: str) -> Any:
        """Returns the next line's value of that name. Raises `DriverDiedError` if the process ends instead."""
        try:
            said = self._lines.get(timeout=ANSWER_S)
        except queue.Empty:
            raise RuntimeError(
                f"the driver did not report {what} within {ANSWER_S:g} s; {self._last_words()}"
            ) from None
        if said is None:
            raise DriverDiedError(self._last_words())
        if what not in said:
            raise RuntimeError(f"the driver says {str(said)[:2_000]}, not {what}")
        return said[what]

    def outcome(self) -> Outcome:
        """Waits for the end of the current run and returns its outcome."""
        return Outcome.of(self.hear("done"))

    def run_to_end(self) -> Outcome:
        self.run()
        return self.outcome()

    def spark_processes(self) -> list[psutil.Process]:
        """Returns the JVM, the daemon of the Python workers and the workers."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children(recursive=True)
        return []

    def workers(self) -> list[psutil.Process]:
        """Returns the Python workers, without the daemon that forks them.

        If the daemon is killed, Spark continues with its idle workers, which are then no descendants of the driver and
        are not found here.
        """
        found = []
        for process in self.spark_processes():
            with suppress(psutil.Error):
                parent = process.parent()
                # A whole argument is compared: the JVM's command line names the daemon in a setting of Spark.
                if parent is not None and all(_DAEMON in p.cmdline() for p in (process, parent)):
                    found.append(process)
        return found

    def readers(self, port: int) -> list[psutil.Process]:
        """Returns the Python workers that are connected to this port of a broker."""
        found = []
        for worker in self.workers():
            with suppress(psutil.Error):
                if any(c.raddr and c.raddr.port == port for c in worker.net_connections("tcp")):
                    found.append(worker)
        return found

    def pause(self) -> None:
        psutil.Process(self.pid).suspend()

    def resume(self) -> None:
        psutil.Process(self.pid).resume()

    def kill(self, *, with_jvm: bool = False) -> None:
        """Kills the driver (SIGKILL). Its JVM ends by itself soon after, as it would for a user: late tasks may still
        write.
        """
        started = self.spark_processes()
        self._process.kill()
        self._process.wait()
        if with_jvm:
            _kill(started)

    def close(self) -> None:
        """Ends the driver cleanly if it still listens."""
        started = self.spark_processes()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _kill(started)

    def _tell(self, order: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def _last_words(self) -> str:
        return f"its log: {self._log.read_text(errors='replace')[-1_500:]}"


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


class Drivers:
    """Drivers by name, all with the same environment. A context manager that closes them."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._living: dict[str, Driver] = {}

    def get(self, name: str) -> Driver:
        """Returns the living driver of that name, or a new one."""
        if name not in self._living:
            self._living[name] = Driver(self._folder / f"driver-{name}.log", self._environment)
        return self._living[name]

    def kill(self, name: str, *, with_jvm: bool) -> None:
        self._living.pop(name).kill(with_jvm=with_jvm)

    def living(self) -> list[Driver]:
        return list(self._living.values())

    def close(self) -> None:
        while self._living:
            self._living.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@dataclass(frozen=True)
class Outcome:
    """The report of a run: `loaded`, `empty` or `failed`, the number of the load, and the error's line."""

    status: str
    load: int | None
    error: str | None
    crash: str | None = None

    @classmethod
    def of(cls, said: dict[str, Any]) -> Outcome:
        if "crash" in said:
            return cls("crashed", None, None, said["crash"])
        topic = said["topics"][0] if said["topics"] else {"load": None, "error": said["error"]}
        return cls(said["status"], topic["load"], topic["error"])


class ReadOnce:
    """A `LakeFiles` that caches data files in `contents`; manifests and listings are read each time."""

    def __init__(self, files: LakeFiles, contents: dict[str, bytes]) -> None:
        self._files = files
        self._contents = contents
        self.read, self.names, self.files, self.is_file = files.read, files.names, files.files, files.is_file

    def open(self, path: str) -> BinaryIO:
        if not is_data(path.rpartition("/")[2]):
            return self._files.open(path)
        if path not in self._contents:
            with self._files.open(path) as file:
                self._contents[path] = file.read()
        return io.BytesIO(self._contents[path])


@dataclass
class Scene:
    """`root` is the lake's URI for the drivers, through the proxy. `fetches` is the proxy to the partitions' leader,
    through which every Fetch goes. `truth`: the acknowledged values. `zookeeper` is that of the cluster, if the
    campaign asked for one.
    """

    run: Run
    total: Result
    topic: str
    hdfs: HdfsServer
    proxy: AnswerLostProxy
    broker: RunningBroker
    fetches: AnswerLostProxy
    zookeeper: ZooKeeperServer | None
    root: str
    config: Path
    drivers: Drivers
    planted: str | None = None
    """The plant in each driver, a name of `plants.PLANTS`."""
    truth: dict[tuple[int, int], bytes] = field(default_factory=dict)
    _contents: dict[str, bytes] = field(default_factory=dict)
    """Data files read earlier: a published file does not change, and all are read again at the end."""
    _number: int = 0

    @property
    def layout(self) -> TopicLayout:
        return TopicLayout(self.root, self.topic)

    @property
    def files(self) -> LakeFiles:
        return ReadOnce(lake_files(self.root, self.hdfs.web_url), self._contents)

    @property
    def admin(self) -> InsecureClient:
        """WebHDFS as HDFS's superuser."""
        return self.client(self.admin_name)

    def client(self, user: str) -> InsecureClient:
        return InsecureClient(self.hdfs.web_url, user=user, timeout=UP_S)

    @property
    def admin_name(self) -> str:
        """The user who started the NameNode."""
        return psutil.Process().username()

    def inside(self, path: str) -> str:
        """Returns a path of the lake for `admin`."""
        return "/" + path.removeprefix("hdfs://").partition("/")[2]

    @property
    def folder(self) -> Path:
        return self.run.folder

    def driver(self, name: str = "a") -> Driver:
        """Returns the living driver of that name, or a new one."""
        driver = self.drivers.get(name)
        if driver.scene is not self:
            driver.scene = self
            driver.load_by(self.config)
            if self.planted is not None:
                driver.plant(self.planted)
        return driver

    def without(self, name: str = "a", *, with_jvm: bool = False) -> None:
        """Kills the driver; `driver` starts a new one."""
        self.drivers.kill(name, with_jvm=with_jvm)

    @contextmanager
    def reading(self) -> Iterator[Driver]:
        """Begins a run; yields its driver when one of its Python workers reads from the broker.

        The broker is stopped until the end of the block, so a worker that reads from it keeps reading.
        """
        driver = self.driver()
        driver.run("load.planned")
        driver.hear("at")
        self.broker.pause()
        try:
            driver.go()
            eventually(lambda: driver.readers(self.broker.port), "a Python worker reads from the broker", UP_S)
            yield driver
        finally:
            self.broker.resume()

    def being_written(self) -> set[str]:
        """Returns the data files of unpublished loads that are open for writing, as the NameNode knows it."""
        staging, web = self.layout.staging_root, f"{self.hdfs.web_url}/webhdfs/v1"
        found: set[str] = set()
        wanted = {"op": "GET_BLOCK_LOCATIONS", "user.name": self.admin_name}
        for name, _ in self.files.files(staging):
            if is_data(name.rpartition("/")[2]):
                answer = requests.get(f"{web}{self.inside(f'{staging}/{name}')}", params=wanted, timeout=UP_S)
                if answer.status_code != requests.codes.not_found:  # else it is removed already
                    answer.raise_for_status()
                    if answer.json()["LocatedBlocks"]["isUnderConstruction"]:
                        found.add(name)
        return found

    def produce(self, chance: random.Random) -> None:
        """Produces some records to each partition and waits for each."""
        stored: list[tuple[int, int, bytes]] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                stored.append((message.partition(), message.offset(), message.value()))

        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "acks": "all", "log_level": 2})
        for _ in range(chance.randint(RECORDS // 2, RECORDS)):
            self._number += 1
            producer.produce(
                self.topic, b"%09d" % self._number, partition=self._number % PARTITIONS, on_delivery=delivered
            )
        if producer.flush(UP_S):
            raise RuntimeError("the broker does not acknowledge the produced records")
        for partition, offset, value in stored:
            self.truth[partition, offset] = value
        self.total.acknowledged += len(stored)

    def numbers(self) -> list[int]:
        return sorted(n for n in map(load_number, self.files.names(self.layout.base)) if n is not None)

    def check(self, at: object, *, whole: bool) -> None:
        """Checks that each offset is in the lake at most once, as it was produced, and that no load is partly visible;
        if `whole`, that all offsets are there.
        """
        if self.numbers():
            for finding in verify_topic(self.files, self.layout).findings:
                self.total.corrupt(at, finding.line())
        rows = Counter(self._rows(at))
        for (partition, offset, value), times in rows.items():
            if times > 1:
                self.total.corrupt(at, f"partition {partition} offset {offset} is there {times} times")
            if self.truth.get((partition, offset)) != value:
                self.total.corrupt(at, f"partition {partition} offset {offset} holds {value!r}, which nobody produced")
        if whole:
            missing = self.truth.keys() - {(partition, offset) for partition, offset, _ in rows}
            if missing:
                self.total.lose(at, f"not in the lake: {sorted(missing)[:3]} …", len(missing))

    def _rows(self, at: object) -> Iterator[tuple[int, int, bytes]]:
        files = self.files
        for number in self.numbers():
            path = self.layout.load(number)
            for name, _ in files.files(path):
                if is_data(name):
                    try:
                        with files.open(f"{path}/{name}") as file:
                            table = pq.ParquetFile(file).read(columns=["_partition", "_offset", "value"])
                    except (OSError, ValueError) as error:
                        self.total.corrupt(at, f"{path}/{name} cannot be read: {error}")
                        continue
                    columns = [table.column(i).to_pylist() for i in range(3)]
                    yield from zip(*columns, strict=True)

    def one_line(self, at: object, outcome: Outcome) -> Outcome:
        """Checks that a failure is one line, no traceback."""
        if outcome.crash is not None:
            self.total.wrong(at, f"the run ends with an exception: {outcome.crash[-1_500:]}")
        if outcome.error is not None and ("\n" in outcome.error or not outcome.error.strip()):
            self.total.wrong(at, f"not one line: {outcome.error!r}")
        self.total.count(f"runs-{outcome.status}")
        return outcome

    def refused(self, at: object, outcome: Outcome) -> Outcome:
        """Checks that the run failed in one line."""
        if self.one_line(at, outcome).status != "failed":
            self.total.wrong(at, f"the run is {outcome.status}, expected failed")
        return outcome

    def recover(self, at: object, name: str = "a") -> None:
        """Runs the next load, without help: it must load the remaining records, so that each offset is there once."""
        outcome = self.driver(name).run_to_end()
        if outcome.status == "failed" or outcome.crash:
            self.total.wrong(at, f"the next run: {outcome.error or outcome.crash}")
        self.check(at, whole=True)

    def age_heartbeats(self, seconds: float = 7_200.0) -> None:
        """Sets the heartbeats' times back by that many seconds."""
        then = int((time.time() - seconds) * 1_000)
        for name in self.files.names(self.layout.staging_root):
            if name.endswith(".alive"):
                self.admin.set_times(self.inside(f"{self.layout.staging_root}/{name}"), then, then)

    def check_end(self, at: object) -> None:
        """Checks that dead jobs leave nothing after their retention, and that the lake is correct as it is on
        HDFS now.
        """
        self.age_heartbeats()
        self.driver().run_to_end()
        if left := self.files.names(self.layout.staging_root):
            self.total.wrong(at, f"the sweep leaves {left}")
        self._contents.clear()
        self.check(at, whole=True)

    def await_hdfs(self) -> None:
        """Waits until a block can be written: the NameNode considers a dead DataNode alive for some time."""
        self.hdfs.await_ready(UP_S)
        refused = ""

        def writable() -> bool:
            nonlocal refused
            try:
                self.admin.write(f"/probe-{time.monotonic_ns()}", b"x")
            except (HdfsError, requests.RequestException) as error:
                refused = str(error).partition("\n")[0]
            else:
                return True
            return False

        if not within(writable, UP_S):
            raise RuntimeError(f"HDFS takes no block within {UP_S:g} s: {refused}")

    def plant(self, what: str) -> None:
        """Plants from the next injection on: `LOST` and `DOUBLED` change the lake, all others its drivers."""
        if what == LOST:
            self._harm(self.admin.delete)
        elif what == DOUBLED:
            self._double()
        else:
            self.planted = what
            for driver in self.drivers.living():
                driver.scene = None  # a plant is set when a driver starts using the scene

    def _double(self) -> None:

        def copy(path: str) -> None:
            with self.admin.read(path) as file:
                data = file.read()
            self.admin.write(path.replace("part-", "part-0"), data)

        self._harm(copy)

    def _harm(self, harm: Callable[[str], object]) -> None:
        path = self.layout.load(self.numbers()[-1])
        name = next(name for name, _ in self.files.files(path) if is_data(name))
        harm(self.inside(f"{path}/{name}"))

    def manifest_of_last(self) -> str:
        return self.inside(f"{self.layout.load(self.numbers()[-1])}/{OFFSETS}")


@contextmanager
def _hdfs(folder: Path) -> Iterator[tuple[HdfsServer, AnswerLostProxy]]:
    """Starts HDFS, and the proxy through which drivers reach its NameNode."""
    ports = HdfsPorts(*(free_port() for _ in range(5)))
    server = HdfsServer(folder, ports, options=_HDFS, ends_with_parent=True)
    server.start(2 * UP_S)
    try:
        with AnswerLostProxy(ports.name_node, holding(b"rename2", b"/load="), armed=False) as proxy:
            yield server, proxy
    finally:
        server.kill()


_Cluster = tuple[RunningBroker, AnswerLostProxy, ZooKeeperServer | None]


@contextmanager
def _broker(folder: Path) -> Iterator[_Cluster]:
    with _proxied_broker(folder, None) as (broker, fetches):
        yield broker, fetches, None


@contextmanager
def _coordinated_broker(folder: Path) -> Iterator[_Cluster]:
    with ZooKeeperServer(folder / "zookeeper", free_port(), ends_with_parent=True) as server:
        zookeeper = {"plugin": "zookeeper", "zookeeper.connect": server.connect}
        with _proxied_broker(folder, zookeeper) as (broker, fetches):
            yield broker, fetches, server


@contextmanager
def _proxied_broker(
    folder: Path, coordination: Mapping[str, Any] | None
) -> Iterator[tuple[RunningBroker, AnswerLostProxy]]:
    """Runs a broker that clients reach at its own port first, and then, as the leader of partitions, by a proxy."""
    port = free_port()
    with AnswerLostProxy(port, is_fetch, armed=False) as fetches:
        keys = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{fetches.port}"}
        with running_broker(folder, port=port, broker=keys, coordination=coordination) as broker:
            yield broker, fetches


@contextmanager
def scene(
    run: Run,
    total: Result,
    *,
    environment: Mapping[str, str] | None = None,
    zookeeper: bool = False,
    spark: Mapping[str, str] | None = None,
) -> Iterator[Scene]:
    """Makes a scene with one published load.

    `zookeeper`: a ZooKeeper coordinates the broker; `spark`: keys of the sink; `environment`: of the drivers. With
    either of the last two the drivers belong to this campaign alone.
    """
    hdfs, proxy = run.kept.of("hdfs", _hdfs)
    which, new_cluster = ("zookeeper", _coordinated_broker) if zookeeper else ("broker", _broker)
    broker, fetches, server = run.kept.of(which, new_cluster)
    topic, root = run.name, f"hdfs://127.0.0.1:{proxy.port}/{run.name}"
    broker.create_topics({topic: {"partitions": PARTITIONS, "config": {"retention.ms": -1}}})
    sink = {
        "plugin": "hadoop", "topics": [topic], "path": root, "webhdfs.url": hdfs.web_url,
        "spark.config": dict(_SPARK), **(spark or {}),
    }  # fmt: skip
    config = {"consumer": {"bootstrap.servers": broker.bootstrap}, "sinks": {SINK: sink}}
    there = run.folder / "load.yaml"
    there.write_text(yaml.safe_dump({**yaml.safe_load(broker.config_path.read_text()), **config}))
    with ExitStack() as stack:

        def new_drivers(folder: Path) -> Drivers:
            return Drivers(folder, {"HADOOP_USER_NAME": USER, **(environment or {})})

        own = environment or spark
        drivers = stack.enter_context(new_drivers(run.folder)) if own else run.kept.of("drivers", new_drivers)
        made = Scene(run, total, topic, hdfs, proxy, broker, fetches, server, root, there, drivers)
        made.admin.makedirs(f"/{run.name}")
        made.admin.set_owner(f"/{run.name}", USER)
        made.produce(run.chance("first"))
        first = made.driver().run_to_end()
        if first.status != "loaded":
            raise RuntimeError(f"the first load: {first}")
        yield made
        proxy.disarm()
        fetches.disarm()


class Inject(Protocol):
    """One injection: injects the fault and checks the run that it affects."""

    def __call__(self, at: int, chance: random.Random, scene: Scene) -> None: ...


def campaign(run: Run, inject: Inject, *, plant: str, quick: int = QUICK, full: int = FULL, **kind: Any) -> Result:
    """Does for each injection: new records, the fault, a check of the lake, the next run, a check of the lake.

    `plant`: see `Scene.plant`; `kind`: see `scene`.
    """
    total = Result(wanted=quick if run.quick else full)
    with scene(run, total, **kind) as stage:
        if run.plant:
            stage.plant(plant)
        for i, chance in run.injections(quick, full):
            stage.produce(chance)
            inject(i, chance, stage)
            total.injected += 1
            stage.check(i, whole=False)
            stage.recover(i)
            if run.plant and total.problem_count:
                return total  # the plant has been found
        stage.check_end("the end")
    return total


def later(seconds: float, what: Callable[[], object]) -> threading.Timer:
    """Starts a timer; the caller joins it."""
    timer = threading.Timer(seconds, what)
    timer.start()
    return timer
