"""`klamm init`: writes a commented configuration file to start from."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from ..errors import ConfigError
from .output import say

Target = Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")]


def init(target: Target = Path("klamm.yaml")) -> None:
    """Write a commented YAML file whose coordination is embedded; an existing file is not changed."""
    text = resources.files("klamm.core.cli").joinpath("starting.yaml").read_text(encoding="utf-8")
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{target}: already exists; it was not changed") from None
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written: {error.strerror}") from error
    say(f"{target} written. Next: `klamm broker`, or `klamm broker --background`.")
