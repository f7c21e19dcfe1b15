"""`klamm broker`: runs one broker, or several of one host, until a signal stops them; `stop` and `status` find them."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt

from ...config.host_brokers import check_host
from ...config.sections.broker import BrokerConfig
from ...config.settings import Settings, load_settings
from ...errors import ConfigError, KlammError, NoSpaceError
from ...garbage import no_collections
from ...interfaces.coordination import SessionExpiredError
from ...process_log import ProcessLog
from ..options import DEFAULT_CONFIG, ConfigFile
from ..output import Json, say
from .service_manager import notify, notify_ready, notify_reloading, watchdog_pings

if TYPE_CHECKING:
    from ...broker.server import Broker
    from ...broker.signals import Signals

log = logging.getLogger(__name__)

_SWITCH_S = 0.0005
"""The interpreter's switch interval, in seconds: the time for which a worker thread may run Python while the event
loop, and with it all requests, waits. Python's default is 5 ms."""
_STARTS = 5
"""How many times a broker is started if its session ends before it has joined."""


AcceptMissing = Annotated[
    bool,
    typer.Option(
        "--accept-missing-logs",
        help="Start partitions whose logs are missing from this broker again, without records.",
    ),
]


Brokers = Annotated[
    int,
    typer.Option(
        "--brokers",
        min=1,
        max=256,
        metavar="N",
        help="Run N brokers of this host, each a process: ids and ports count up from the file's.",
    ),
]
Only = Annotated[
    int | None,
    typer.Option("--only", metavar="ID", help="Of the brokers that --brokers names, run this one here, alone."),
]
Background = Annotated[
    bool,
    typer.Option("--background", help="Return once the broker is ready; it goes on until `klamm broker stop`."),
]
StopTimeout = Annotated[
    float, typer.Option("--timeout", min=0, metavar="SECONDS", help="How long a clean stop may take.")
]
Lifeline = Annotated[
    bool, typer.Option("--stop-at-end-of-input", hidden=True, help="Stop when standard input is closed.")
]


app = typer.Typer(add_completion=False, invoke_without_command=True)


@app.callback()
def broker(
    context: typer.Context,
    config: ConfigFile = DEFAULT_CONFIG,
    accept_missing_logs: AcceptMissing = False,
    brokers: Brokers = 1,
    only: Only = None,
    background: Background = False,
    stop_at_end_of_input: Lifeline = False,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C; a second signal does not wait for a clean stop. SIGHUP reloads the file."""
    if context.invoked_subcommand is not None:
        _refuse_options_before(context, context.invoked_subcommand)
        return
    settings = load_settings(config)
    settings.host().call_hooks()
    check_host(settings.broker, brokers)
    if background:
        from .background import start_in_background

        started = ["--config", str(config.absolute()), "--brokers", str(brokers)]
        started += [] if only is None else ["--only", str(only)]
        started += ["--accept-missing-logs"] if accept_missing_logs else []
        start_in_background(_chosen(settings, brokers, only), started)
        return
    if only is None and brokers > 1:
        from .host_brokers import run_brokers

        interrupted = run_brokers(settings, config.absolute(), brokers, accept_missing_logs=accept_missing_logs)
    else:
        if only is not None:
            settings = settings.for_broker(_index(settings, brokers, only))
        serving = _serve(
            settings,
            config.absolute(),
            ProcessLog(settings.log),
            accept_missing_logs=accept_missing_logs,
            stop_at_end_of_input=stop_at_end_of_input,
        )
        interrupted = _run(serving)
    if interrupted:
        raise KeyboardInterrupt


@app.command()
def stop(
    config: ConfigFile = DEFAULT_CONFIG, brokers: Brokers = 1, only: Only = None, timeout: StopTimeout = 120.0
) -> None:
    """Stop the file's broker cleanly, however it was started; with --brokers N, all of them."""
    from .background import stop_brokers

    stop_brokers(_chosen(load_settings(config), brokers, only), timeout)


@app.command()
def status(config: ConfigFile = DEFAULT_CONFIG, brokers: Brokers = 1, only: Only = None, as_json: Json = False) -> None:
    """Show whether the file's broker runs: address, process id, data. Exit status 3 if it does not."""
    from .background import print_status

    print_status(_chosen(load_settings(config), brokers, only), as_json)


def _refuse_options_before(context: typer.Context, command: str) -> None:
    """Refuses an option before the name of a subcommand, where it would have no effect."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            context.fail(f"{parameter.opts[0]} stands before {command!r}; write: klamm broker {command} [OPTIONS]")


def _chosen(settings: Settings, brokers: int, only: int | None) -> list[BrokerConfig]:
    """Returns the configurations of the brokers that `--brokers` and `--only` name."""
    check_host(settings.broker, brokers)
    indexes = range(brokers) if only is None else [_index(settings, brokers, only)]
    return [settings.for_broker(index).broker for index in indexes]


def _index(settings: Settings, brokers: int, only: int) -> int:
    first = settings.broker.broker_id
    if not first <= only < first + brokers:
        raise ConfigError(f"--only {only}: --brokers {brokers} are the ids {first} to {first + brokers - 1}")
    return only - first


def _run(main: Coroutine[Any, Any, bool]) -> bool:
    """Runs on uvloop if it is installed (design D4)."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


async def _serve(
    settings: Settings, file: Path, process_log: ProcessLog, *, accept_missing_logs: bool, stop_at_end_of_input: bool
) -> bool:
    """Serves until a signal; returns whether that was Ctrl-C."""
    with no_collections():
        from ...broker.network import allocator
        from ...broker.server import Broker
        from ...broker.signals import Signals
    gc.freeze()  # next to nothing of what the imports have made is garbage

    signals = Signals()
    tasks: list[asyncio.Task[None]] = []
    if stop_at_end_of_input:
        signals.stop_at_end_of(sys.stdin.fileno())
    server: Broker | None = None
    try:
        server = await start_broker(lambda: Broker(settings, process_log, accept_missing_logs=accept_missing_logs))
        gc.collect()
        gc.freeze()  # these objects live as long as the process: no collection scans them again while all requests wait
        allocator.trim()  # what the imports have freed: nearly 1 MB
        sys.setswitchinterval(_SWITCH_S)
        where = f"id {settings.broker.broker_id}, {_where(server)}"
        say(f"klamm broker ready: {where}")
        notify_ready(where)
        reloads = asyncio.create_task(_reload_on_sighup(signals, server, file, where))
        tasks += [reloads, asyncio.create_task(watchdog_pings())]
        ends: list[asyncio.Future[Any]] = [signals.stopped, server.failed]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        reloads.cancel()
        notify("STOPPING=1")
        if server.failed.done():
            raise server.failed.result()
        by = signals.stopped.result()
        log.info("%s: stopping; a second signal does not wait", by.name)
    except NoSpaceError as error:  # of the start; later ones are the partitions'
        hint = "free space on that disk: a broker needs a few MB to start, and takes no records until there is more"
        raise NoSpaceError(f"{error}; {hint}") from error
    except OSError as error:
        raise KlammError(f"broker {settings.broker.broker_id}: {error.strerror or error}") from error
    finally:
        if server is not None:
            await server.stop()
        for task in tasks:
            task.cancel()
    return by is signal.SIGINT


async def start_broker(make: Callable[[], Broker]) -> Broker:
    """Starts a broker. If its session ends before it has joined the cluster, as on a machine that is busy for seconds,
    another one is made and started; raises `SessionExpiredError` if that has failed `_STARTS` times."""

    async def started() -> Broker:
        server = make()
        await server.start()
        return server

    def say(state: RetryCallState) -> None:
        log.warning("the broker starts again: %s", state.outcome and state.outcome.exception())

    return await AsyncRetrying(
        retry=retry_if_exception_type(SessionExpiredError), stop=stop_after_attempt(_STARTS), before_sleep=say,
        reraise=True,
    )(started)  # fmt: skip


async def _reload_on_sighup(signals: Signals, server: Broker, file: Path, where: str) -> None:
    while True:
        await signals.hangup.wait()
        signals.hangup.clear()
        notify_reloading()
        try:
            await server.reload(file)
        except Exception:  # the broker must go on serving, and react to the next SIGHUP
            log.exception("%s could not be reloaded", file)
        notify_ready(where)


def _where(server: Any) -> str:
    return ", ".join(map(str, server.advertised))
