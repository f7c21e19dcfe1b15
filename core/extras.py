"""What to install where a package of an extra is missing.

The hint lists the packages of the extra, as the installed distribution declares them: pip finds those wherever the
distribution itself came from, a clone or a wheel included.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import ConfigError

__all__ = ["importing", "install_command", "missing_package"]


def install_command(requirement: str) -> str:
    """Returns the command that installs what `requirement` (`klamm[spark]`) adds to the installed distribution; `pip
    install REQUIREMENT` if it is no extra of an installed one."""
    import shlex  # no broker needs it
    from importlib import metadata  # takes 60 ms to import

    match = re.fullmatch(r"([\w.-]+)\[([\w.,-]+)\]", requirement)
    packages: dict[str, None] = {}
    if match is not None:
        try:
            declared = metadata.requires(match[1]) or []
        except metadata.PackageNotFoundError:
            declared = []
        for line in declared:
            package, _, marker = (part.strip() for part in line.partition(";"))
            extra = re.search(r"""extra\s*==\s*["']([\w.-]+)["']""", marker)
            if extra is not None and extra[1] in match[2].split(","):
                packages[package] = None
    return f"pip install {shlex.join(packages or [requirement])}"


def missing_package(what: str, error: ImportError, requirement: str) -> str | None:
    """Returns the line for a user of `what`: the missing package and how to install it. None if the error is about a
    module of Klamm itself."""
    if not error.name or error.name.partition(".")[0] == "klamm":
        return None
    return f"{what} needs {error.name}, which is not installed: {install_command(requirement)}"


@contextmanager
def importing(what: str, requirement: str) -> Iterator[None]:
    """A context for imports from an extra: raises `ConfigError` with `missing_package`'s line if a package is
    missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        line = missing_package(what, error, requirement)
        if line is None:
            raise
        raise ConfigError(line) from error
