"""Commands and groups with help in plain text, and with parameters that are converted only where it is necessary.

Typer's own help imports rich, which takes as much CPU time as the rest of `klamm --help`; its conversion imports
pydantic, a quarter of the time of `klamm topics list`.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

from .output import writing


class PlainCommand(TyperCommand):
    """A command with quick parameters."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with writing():  # help is printed here
            return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        return [_quick(parameter) for parameter in super().get_params(ctx)]


class PlainGroup(TyperGroup):
    """A group whose help shows the whole first paragraph of each command's help, wrapped; click cuts it off at the
    end of the line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with writing():  # help is printed here
            return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        return [_quick(parameter) for parameter in super().get_params(ctx)]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                rows.append((name, " ".join((command.help or "").split("\n\n")[0].split())))
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def _quick(parameter: Any) -> Any:
    """Returns the parameter, changed so that its own default, and text where text is expected, are not converted."""
    if "process_value" in vars(parameter):
        return parameter
    process = parameter.process_value
    descriptor = getattr(parameter, "type_descriptor", None)  # older versions of typer convert without pydantic
    takes_text = descriptor is not None and descriptor.annotation is str
    single = parameter.nargs == 1 and not getattr(parameter, "multiple", False)

    def process_value(ctx: Any, value: Any) -> Any:
        as_it_is = value is parameter.default or (takes_text and isinstance(value, str))
        if not single or not as_it_is or (value is None and parameter.required):
            return process(ctx, value)
        return value if parameter.callback is None else parameter.callback(ctx, parameter, value)

    parameter.process_value = process_value
    return parameter
