"""`klamm broker`: one broker until it is told to stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Coroutine
from typing import Any

from klamm.core.cli.options import DEFAULT_CONFIG, ConfigFile
from klamm.core.config.settings import Settings, load_settings
from klamm.core.errors import KlammError

log = logging.getLogger(__name__)

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def broker(config: ConfigFile = DEFAULT_CONFIG) -> None:
    """Run a broker until SIGTERM or Ctrl-C; a second signal does not wait for a clean stop."""
    settings = load_settings(config)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=LOG_FORMAT)
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    interrupted = _run(_serve(settings))
    if interrupted:
        raise KeyboardInterrupt


def _run(main: Coroutine[Any, Any, bool]) -> bool:
    """On uvloop where it is installed (design D4)."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


async def _serve(settings: Settings) -> bool:
    """Whether it was Ctrl-C that ended it."""
    from klamm.core.broker.server import Broker
    from klamm.core.broker.signals import Signals

    signals = Signals()
    server = Broker(settings)
    try:
        await server.start()
        gc.collect()
        gc.freeze()  # what is there now stays: no collection walks it again, with all requests waiting
        print(f"klamm broker ready: id {settings.broker.broker_id}, {_where(server)}", flush=True)
        by = await signals.stopped
        log.info("%s: stopping; a second signal does not wait", by.name)
    except OSError as error:
        raise KlammError(f"broker {settings.broker.broker_id}: {error.strerror or error}") from error
    finally:
        await server.stop()
    return by is signal.SIGINT


def _where(server: Any) -> str:
    return ", ".join(f"{name}://{host}:{port}" for name, host, port in server.advertised)
