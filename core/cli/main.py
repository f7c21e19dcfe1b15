"""The `klamm` command: its own commands and those of plugins (hook `klamm_commands`).

A command's module is imported only when the command runs or its help is shown. A user's error is one line on stderr;
the exit status is 1 for a failure, 2 for wrong usage or configuration, 130 after Ctrl-C.
"""

from __future__ import annotations

import logging
import os
import sys
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand
from typer.main import get_command as typer_command

import klamm

from ..errors import ConfigError, KlammError, PluginError
from ..escaping import LineFormatter
from ..garbage import no_collections
from ..interfaces.command import Command
from .output import discard_output, flush_output, reader_ended, say
from .plain_help import PlainCommand, PlainGroup

__all__ = ["CORE_COMMANDS", "KlammGroup", "LazyCommand", "app", "klamm_command", "main"]

CORE_COMMANDS = (
    Command("init", "klamm.core.cli.init:init", "Write a commented klamm.yaml to start from."),
    Command("broker", "klamm.core.cli.broker.commands:app", "Run a broker, here or in the background; stop it."),
    Command("topics", "klamm.core.cli.admin.topics:app", "List, create, describe, alter, apply and delete topics."),
    Command("produce", "klamm.core.cli.record_io.produce:produce", "Send lines, JSON or CSV as records to a topic."),
    Command("consume", "klamm.core.cli.record_io.consume:consume", "Print the records of topics."),
    Command(
        "groups", "klamm.core.cli.admin.groups:app", "List consumer groups, show their lag, reset and delete them."
    ),
    Command("cluster", "klamm.core.cli.admin.cluster:app", "Show brokers and replicas, even them out, empty a broker."),
    Command("mirror", "klamm.core.cli.mirror.commands:app", "Follow topics of another cluster, and promote them."),
    Command("sink", "klamm.core.cli.record_io.sink:sink", "Put the records of topics into a sink."),
    Command("config", "klamm.core.cli.config:app", "Check, show and reload the configuration."),
    Command("plugins", "klamm.core.cli.plugins:plugins", "List what is loaded, from where, and what it provides."),
    Command("docs", "klamm.core.cli.docs:docs", "List the pages and examples of this installation, or print one."),
    Command("completion", "klamm.core.cli.completion:completion", "Print the completion script of a shell."),
)


class LazyCommand(TyperCommand):
    """A command of which only the name and one line of help are known; loads the real command when it is about to
    run."""

    def __init__(self, command: Command) -> None:
        super().__init__(command.name, help=command.summary)
        self._command = command

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self._load().make_context(info_name, args, parent=parent, **extra)

    def _load(self) -> Any:
        module, _, name = self._command.target.partition(":")
        try:
            with no_collections():
                target = getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise PluginError(self._why(error)) from error
        if isinstance(target, typer.Typer):
            target.rich_markup_mode = None
            target.info.cls = PlainGroup
            for each in target.registered_commands:
                each.cls = PlainCommand
            return typer_command(target)
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(self._command.name, cls=PlainCommand)(target)
        return typer_command(app)

    def _why(self, error: ImportError | AttributeError) -> str:
        if self._command.install and isinstance(error, ImportError):
            from ..extras import missing_package

            line = missing_package(f"klamm {self._command.name}", error, self._command.install)
            if line is not None:
                return line
        return f"command {self._command.name!r} cannot be loaded: {error}"


class KlammGroup(PlainGroup):
    """The commands: the core's in their order, then the plugins' by name."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return [command.name for command in CORE_COMMANDS] + sorted(command.name for command in _plugin_commands())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        for command in CORE_COMMANDS:
            if command.name == cmd_name:
                return LazyCommand(command)
        for command in _plugin_commands():
            if command.name == cmd_name:
                return LazyCommand(command)
        self.commands = {
            name: TyperCommand(name) for name in self.list_commands(ctx)
        }  # typer suggests the nearest of these for a mistyped name
        return None


def _plugin_commands() -> list[Command]:
    from ..plugins import plugin_host

    taken = {command.name for command in CORE_COMMANDS}
    return [command for command in plugin_host().commands if command.name not in taken]


app = typer.Typer(
    cls=KlammGroup,
    rich_markup_mode=None,
    add_completion="_KLAMM_COMPLETE" in os.environ,  # set by the script of `klamm completion`
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        from ..records.native import IMPLEMENTATION

        say(f"klamm {klamm.__version__}, {IMPLEMENTATION} record batches")
        raise typer.Exit


@app.callback()
def klamm_command(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """A publish-subscribe log that every Kafka client can use."""


def main() -> None:
    """The console script. Errors of the user are one line, never a traceback."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed (`>&-`): there is nobody to print to
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    if logging.lastResort is not None:  # where the file has no section `log`
        logging.lastResort.setFormatter(LineFormatter())
    try:
        status = app(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        _leave(130)
    except ConfigError as error:
        _say(error)
        _leave(2)
    except KlammError as error:
        _say(error)
        _leave(1)
    except SystemExit as ended:  # click's own, with status 1, where its help or a connection met a broken pipe
        cause = ended.__context__
        if not isinstance(cause, BrokenPipeError):
            raise
        if reader_ended():  # `klamm --help | head`: the reader has what it wants
            _leave(0)
        _say(KlammError(str(cause)))
        _leave(1)
    except OSError as error:  # a full disk, a directory without write permission: the user can fix it
        _say(KlammError(f"{error.filename}: {error.strerror}" if error.filename else str(error)))
        discard_output()
        _leave(1)
    except Exception as error:
        if not hasattr(error, "exit_code"):
            raise
        error.show()  # type: ignore[attr-defined]  # typer's own usage errors
        _leave(int(error.exit_code))
    _leave(status if isinstance(status, int) else 0)


def _say(error: KlammError) -> None:
    lines = str(error).split("\n")
    for line in [f"klamm: {lines[0]}"] if len(lines) == 1 else lines:
        say(line, err=True)


def _leave(status: int) -> None:
    """Ends with the exit status; 1 in place of 0 if the output cannot be written."""
    try:
        flush_output()
    except KlammError as error:
        _say(error)
        status = status or 1
    sys.exit(status)
