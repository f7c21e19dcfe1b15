"""A broker is stopped (SIGSTOP) past the end of its session; in half of the injections another broker has taken its id
when it continues.
"""

from __future__ import annotations

from harness import Result, Run
from klamm.core.cluster.tree import paths
from klamm.core.config.settings import load_settings
from klamm.core.errors import ErrorCode
from klamm.core.protocol import messages
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.headers import read_response_header
from klammtest.broker import RunningBroker, pause_past_session, running_broker
from klammtest.clusters.images import registered_elsewhere
from klammtest.requests import batch, produce, produce_fields
from klammtest.wire import WireClient
from produced import values_in

TOPIC = "slept"
SESSION_MS = 1500
WAITING = 5
LIMIT_S = 60.0
VERSION = 9
_TREE = {"plugin": "embedded", "path": "./coordination.db", "session.timeout.ms": SESSION_MS}


class PausedBroker:
    name = "paused-broker"
    injects = (
        "SIGSTOP of a broker until its session is over, with Produce requests sent meanwhile; by chance another log "
        "directory is registered under its id before it wakes"
    )
    asserts = (
        "if displaced, it acknowledges nothing, logs the reason in one line and exits with 1; otherwise it "
        "continues to serve; everything that was ever acknowledged is in its log"
    )
    plants = "the broker continues to serve whatever happened to its registration"
    tools = ()

    def run(self, run: Run) -> Result:
        total = Result(wanted=2 if run.quick else 20)
        plugins = {"modules": ["klammtest.plugins.without_lease"]} if run.plant else {}
        for i, chance in run.injections(2, 20):
            taken = run.plant or (i % 2 == 0 if run.quick else chance.random() < 0.5)
            with running_broker(
                run.folder / str(i), topics={TOPIC: {"partitions": 1}}, coordination=_TREE, plugins=plugins
            ) as broker:
                self._once(i, broker, total, taken=taken)
        return total

    def _once(self, i: int, broker: RunningBroker, total: Result, *, taken: bool) -> None:
        tree = load_settings(broker.config_path).make_coordination()
        tree.start()
        try:
            with WireClient(broker.bootstrap) as wire:
                answer = produce(wire, TOPIC, batch(b"%09d" % 0))
                acknowledged = [0] if answer.error_code is ErrorCode.none else []
                pause_past_session(broker, 0, tree)
                if taken:
                    tree.create(paths.broker(0), registered_elsewhere().encode(), ephemeral=True)
                for value in range(1, WAITING + 1):
                    wire.send(ApiKey.PRODUCE, VERSION, **produce_fields({(TOPIC, 0): batch(b"%09d" % value)}))
                broker.resume()
                total.injected += 1
                awake = _acknowledged(wire)
            if taken:
                total.count("displaced")
                for value in awake:
                    total.lose(i, f"value {value} was acknowledged by a broker whose id was taken")
                if not total.problems:
                    self._ended(i, broker, total)
                    tree.delete(paths.broker(0))
            acknowledged += awake
        finally:
            tree.close()
        total.acknowledged += len(acknowledged)
        broker.restart()
        lost = set(acknowledged) - set(values_in(broker.bootstrap, TOPIC))
        if lost:
            total.lose(i, f"acknowledged, but not in the log: {sorted(lost)}", len(lost))

    def _ended(self, i: int, broker: RunningBroker, total: Result) -> None:
        if not broker.died(LIMIT_S):
            total.wrong(i, "a displaced broker continues to run")
            return
        status, text = broker.stop(), broker.log()
        said = [line for line in text.splitlines() if line.startswith("klamm: ") and "broker id 0 was taken by" in line]
        if status != 1 or len(said) != 1 or "Traceback" in text:
            total.wrong(i, f"a displaced broker ended with {status}: {text[-300:]}")


def _acknowledged(wire: WireClient) -> list[int]:
    """Returns which of the waiting batches are acknowledged, in order, before the connection ends."""
    found = []
    for value in range(1, WAITING + 1):
        frame = wire.receive_frame()
        if frame is None:
            break
        _, offset = read_response_header(frame, ApiKey.PRODUCE, VERSION)
        answer = messages.response(ApiKey.PRODUCE, VERSION).decode(frame, offset)
        if answer.responses[0].partition_responses[0].error_code is ErrorCode.none:
            found.append(value)
    return found


CAMPAIGNS = [PausedBroker()]
