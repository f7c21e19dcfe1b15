"""The reference of hooks in `docs/plugins.md`, made from the specifications and the interfaces.

`PYTHONPATH=tests/support python -m klammtest.pages.hook_reference docs/plugins.md` rewrites it; a test compares.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from klamm import plugin
from klamm.core import hookspecs
from klamm.core.hookspecs import PROJECT
from klamm.core.interfaces.provider import Provider
from klamm.core.plugins import mandatory

BEGIN = "<!-- The rest is made by klammtest.pages.hook_reference; a test compares. -->"


def hooks() -> dict[str, Callable[..., Any]]:
    """Returns every hook by name, in the order of the specification."""
    return {
        name: found
        for name, found in vars(hookspecs).items()
        if inspect.isfunction(found) and name.startswith(f"{PROJECT}_")
    }


def signature(hook: Callable[..., Any]) -> str:
    """Returns the signature as a plugin writes it: `def klamm_codecs() -> Iterable[Provider[[], Codec]]: ...`."""
    said = inspect.signature(hook)
    parameters = ", ".join(str(parameter) for parameter in said.parameters.values())
    return f"def {hook.__name__}({parameters}) -> {said.return_annotation}: ..."


def made_by(hook: Callable[..., Any]) -> tuple[type, ...]:
    """Returns the interfaces that the hook's providers may make, or the class that it returns itself."""
    (offered,) = get_args(
        get_type_hints(hook, localns={name: getattr(plugin, name) for name in plugin.__all__})["return"]
    )
    made = get_args(offered)[-1] if get_origin(offered) is Provider else offered
    return get_args(made) if isinstance(made, UnionType) else (made,)


def reference() -> str:
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield BEGIN
    for name, hook in hooks().items():
        yield f"\n### {name}\n\n{inspect.getdoc(hook)}\n"
        yield f"```py\n@hookimpl\n{signature(hook)}\n```\n"
        for made in made_by(hook):
            yield f"From `{made.__module__}`:\n"
            yield f"```py\n{inspect.getsource(made).rstrip()}\n```"
            if names := mandatory(made):
                yield f"\nMandatory: {', '.join(f'`{name}`' for name in names)}."


def main(page: Path) -> None:
    """Put the reference in place of the one on the page."""
    head = page.read_text(encoding="utf-8").partition(BEGIN)[0]
    page.write_text(head + reference(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
