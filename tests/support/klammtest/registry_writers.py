"""Two registries that register at once beside three real brokers, of which one is killed and one stopped meanwhile.

What must hold after it (`Outcome.problems`): no id has two texts, no version is missing, every registration that was
answered is in the topic as it was answered. `python -m klammtest.registry_writers` runs it long and prints a line.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from klamm.core.records.partition import TopicPartition
from klamm.schemas.names import SCHEMA_TOPIC
from klamm.schemas.registry.log import TOPIC_CONFIGS
from klammtest.registry import RunningRegistry, running_registry
from klammtest.replicated.cluster import BrokerCluster, running_cluster
from klammtest.waiting import eventually

PARTITION = TopicPartition(SCHEMA_TOPIC, 0)
SUBJECTS = 3


@dataclass
class Outcome:
    answered: list[tuple[str, int, int, str]] = field(default_factory=list)
    """Subject, version, id and text of each answered registration."""
    waits_s: list[float] = field(default_factory=list)
    refused: Counter[int] = field(default_factory=Counter)
    """Answers that were errors, by code; each was asked again."""
    overtaken: int = 0

    def problems(self, registry: RunningRegistry) -> Iterator[str]:
        """Yields what a registry has that must not be, or lacks."""
        texts: dict[int, str] = {}
        for subject in {row[0] for row in self.answered}:
            versions = registry.get(f"/subjects/{subject}/versions").body
            if versions != list(range(1, len(versions) + 1)):
                yield f"{subject} has the versions {versions}"
            for version in versions:
                found = registry.get(f"/subjects/{subject}/versions/{version}").body
                if texts.setdefault(found["id"], found["schema"]) != found["schema"]:
                    yield f"id {found['id']} has two texts"
        for subject, version, schema_id, text in self.answered:
            found = registry.get(f"/subjects/{subject}/versions/{version}")
            if found.status != 200 or (found.body["id"], found.body["schema"]) != (schema_id, text):
                yield f"{subject} version {version} was answered with id {schema_id}, and is {found.body}"


def register_at_once(cluster: BrokerCluster, registrations: int, pause_s: float) -> Outcome:
    """Each of two registries registers `registrations` schemas, of which half are the other's too; the leader of the
    topic is killed and started again, then the leader is stopped for `pause_s` and continues."""
    outcome, lock, numbers = Outcome(), threading.Lock(), itertools.count()
    done, stop = threading.Event(), threading.Event()
    cluster.create_topic(SCHEMA_TOPIC, 1, TOPIC_CONFIGS)  # with three replicas
    assert cluster.await_in_sync(SCHEMA_TOPIC, 1)

    def send(registry: RunningRegistry, mine: int) -> None:
        for number in range(registrations):
            name = f"Shared{number}" if number % 2 else f"Own{mine}_{number}"
            text = f'{{"type":"record","name":"{name}","fields":[]}}'
            subject = f"s{number % SUBJECTS}"
            began = time.monotonic()
            while True:
                answer = registry.register(subject, text)
                if answer.status == 200:
                    break
                assert not stop.is_set(), answer.body
                with lock:
                    outcome.refused[answer.body["error_code"]] += 1
                assert answer.body["error_code"] in (50001, 50002), answer.body
            with lock:
                next(numbers)
                outcome.waits_s.append(time.monotonic() - began)
                outcome.answered.append((subject, answer.body["version"], answer.body["id"], answer.body["schema"]))

    def disturb() -> None:
        def moved(before: int) -> bool:
            state = cluster.state(PARTITION)
            return state is not None and state.leader not in (-1, before)

        for pause in (False, True):
            before = len(outcome.answered)
            eventually(lambda: len(outcome.answered) > before + registrations // 5 or done.is_set(), "answers")  # noqa: B023
            state = cluster.state(PARTITION)
            assert state is not None
            if pause:
                cluster.brokers[state.leader].pause()
                time.sleep(pause_s)
                cluster.brokers[state.leader].resume()
            else:
                cluster.kill([state.leader])
                eventually(lambda: moved(state.leader), "another leader")  # noqa: B023
                cluster.start([state.leader])

    with ExitStack() as stack:
        registries = [
            stack.enter_context(running_registry(cluster.bootstrap, schema_compatibility_level="NONE"))
            for _ in range(2)
        ]
        pool = stack.enter_context(ThreadPoolExecutor(3))
        eventually(lambda: all(one.service.health() is None for one in registries), "the topic is read")
        disturbing = pool.submit(disturb)
        disturbing.add_done_callback(lambda done: stop.set() if done.exception() else None)
        sending = [pool.submit(send, registry, mine) for mine, registry in enumerate(registries)]
        for each in sending:
            each.result()
        done.set()
        disturbing.result()
        outcome.overtaken = sum(
            int(metric.value)
            for one in registries
            for metric in one.service.metrics()
            if metric.name == "registry_writes_overtaken"
        )
        third = stack.enter_context(running_registry(cluster.bootstrap))
        for registry in (*registries, third):
            assert not list(outcome.problems(registry))
    return outcome


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--registrations", type=int, default=1000)
    arguments.add_argument("--pause", type=float, default=60.0)
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        embedded = {"plugin": "embedded", "path": str(folder / "coordination.db")}
        with running_cluster(folder, embedded) as cluster:
            outcome = register_at_once(cluster, chosen.registrations, chosen.pause)
    waits = sorted(outcome.waits_s)
    print(
        f"{len(outcome.answered)} registrations answered, {dict(outcome.refused)} refused and sent again, "
        f"{outcome.overtaken} attempts overtaken; the longest wait {waits[-1]:.1f} s, the median "
        f"{waits[len(waits) // 2] * 1000:.0f} ms; no id twice, no version missing, all that was answered is there"
    )


if __name__ == "__main__":
    main()
