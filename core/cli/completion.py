"""`klamm completion`: prints the script with which a shell completes commands and options."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from .output import say_document

VARIABLE = "_KLAMM_COMPLETE"
"""The environment variable by which the script asks `klamm` for completions."""


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish")]) -> None:
    """Print the completion script of a shell. In bash: source <(klamm completion bash)"""
    from typer._completion_shared import get_completion_script

    say_document(get_completion_script(prog_name="klamm", complete_var=VARIABLE, shell=shell.value))
