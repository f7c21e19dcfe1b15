"""`klamm registry`: the schema registry in a process of its own."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Annotated

import typer

from klamm.core.cli.foreground import StopRequestedError, raise_on_stop_signals
from klamm.core.cli.options import DEFAULT_CONFIG, Bootstrap, ConfigFile
from klamm.core.cli.output import say
from klamm.core.client.factory import open_client
from klamm.core.config.settings import load_settings
from klamm.core.errors import KlammError
from klamm.core.process_log import of_command


def registry(
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
    listener: Annotated[
        str | None, typer.Option("--listener", help="The address to listen on; instead of the file's `listeners`.")
    ] = None,
) -> None:
    """Serve the schemas of a cluster by Confluent's REST API, until Ctrl-C or SIGTERM.

    Any number may run at once: each takes writes. A broker runs one itself with `services: [registry]`.
    """
    from ..registry.log import kept_ids
    from .config import registry_config
    from .service import RegistryService
    from .topic import REQUEST_S, SchemaTopic

    settings = load_settings(config)
    of_command(settings.log)
    options = registry_config(settings)
    if listener is not None:
        options = options.model_copy(update={"listeners": listener})
    coordination = settings.make_coordination()
    coordination.start()
    with closing(coordination), suppress(StopRequestedError):
        client = open_client(settings, "registry", bootstrap_servers=bootstrap, request_timeout_s=REQUEST_S)
        topic = SchemaTopic(client, options.kafkastore_topic, last_ids=kept_ids(coordination))
        service = RegistryService(options, topic)
        try:
            raise_on_stop_signals()
            service.start()
            say(f"klamm registry ready on {service.url}")
            service.wait()
        finally:
            service.stop()
            topic.close()
        problem = service.health()
        if problem is not None:
            raise KlammError(problem)
