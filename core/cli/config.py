"""`klamm config`: checks, shows and reloads the configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
import yaml
from pydantic import BaseModel

from ..config.choice import PluginChoice
from ..config.section import definitions
from ..config.settings import Settings, load_settings
from ..errors import KlammError
from .options import DEFAULT_CONFIG, ConfigFile
from .output import Json, say, say_document, say_json

app = typer.Typer(add_completion=False, help="Check, show and reload the configuration.", no_args_is_help=True)


@app.command()
def check(config: ConfigFile = DEFAULT_CONFIG) -> None:
    """Validate the file; if it is invalid, print a line for each problem and exit with 2."""
    settings = load_settings(config)
    settings.check_plugins()
    for topic in settings.topics:
        settings.check_topic(topic)
    for sink in settings.sinks:
        settings.check_sink(sink)
    say(f"{config}: ok")


@app.command()
def reload(config: ConfigFile = DEFAULT_CONFIG) -> None:
    """Make the broker of this file on this host read it again; print what changed, and what needs a restart."""
    from .broker.reloading import reload_broker

    settings = load_settings(config)
    outcome = reload_broker(settings.broker.log_dirs)
    if Path(outcome.file) != config.absolute():
        raise KlammError(f"the broker of {settings.broker.log_dirs} reads another file, {outcome.file}")
    if outcome.error:
        raise KlammError(f"{config}: {outcome.lines()[0]}")
    for line in outcome.lines():
        say(f"{config}: {line}")


@app.command()
def show(config: ConfigFile = DEFAULT_CONFIG, as_json: Json = False) -> None:
    """Print every key with the value in force, defaults and environment included, as YAML or JSON."""
    shown = in_force(load_settings(config))
    if as_json:
        say_json(shown)
        return
    text = yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=120)
    if not text.replace("\n", "").isprintable():  # then with YAML's escapes, which `say_document` leaves alone
        text = yaml.safe_dump(shown, sort_keys=False, width=120)
    say_document(text)


def in_force(settings: Settings) -> dict[str, Any]:
    """Returns the settings in the shape of the file."""
    shown: dict[str, Any] = {
        "broker": _to_yaml(settings.broker),
        "coordination": _to_yaml(settings.coordination),
        "offsets": _to_yaml(settings.offsets),
        "topics": {name: {**_to_yaml(t), **_to_yaml(t.options)} for name, t in settings.topics.items()},
        "producer": _to_yaml(settings.producer),
        "consumer": _to_yaml(settings.consumer),
        "sinks": {name: {**_to_yaml(sink.choice), **_to_yaml(sink)} for name, sink in settings.sinks.items()},
        "serdes": {name: _to_yaml(choice.config) for name, choice in settings.serdes.items()},
        "plugins": {"modules": list(settings.plugins)},
        "log": _to_yaml(settings.log),
    }
    if settings.audit is not None:
        shown["audit"] = _to_yaml(settings.audit)
    return shown


def _to_yaml(value: Any) -> Any:
    """Returns a value as YAML can represent it; keys that are not set are left out."""
    if isinstance(value, PluginChoice):
        return {"plugin": value.plugin, **_to_yaml(value.config)}
    if isinstance(value, BaseModel):
        fields = type(value).model_fields.items()
        named = zip(definitions(type(value)), fields, strict=True)
        items = {d.name: getattr(value, name) for d, (name, info) in named if not info.exclude}
        return {key: _to_yaml(item) for key, item in items.items() if item is not None}
    if isinstance(value, dict):
        return {key: _to_yaml(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_yaml(item) for item in value]
    if isinstance(value, float):
        return float(value)  # YAML cannot represent a subclass
    return value if type(value) in (bool, int, str) else str(value)  # YAML cannot represent an enum
