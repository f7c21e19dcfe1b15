"""`klamm docs`: the pages and the examples that came with this installation."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated

import typer

from ..errors import ConfigError
from .output import Json, say, say_document, say_json

_FOLDERS = ("docs", "examples")
_SHOWN = {".md", ".yaml", ".service", ".json", ".py", ".toml"}


def docs(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Print this file, such as alerts.yaml.")] = None,
    as_json: Json = False,
) -> None:
    """List the pages and examples of this installation, or print one: `klamm docs klamm.service > klamm.service`."""
    folder = pages_folder()
    files = sorted(
        str(path.relative_to(folder))
        for each in _FOLDERS
        for path in (folder / each).rglob("*")
        if path.suffix in _SHOWN
    )
    if name is None:
        for file in files:
            if as_json:
                say_json({"name": file, "path": str(folder / file)})
            else:
                say(str(folder / file))
        return
    found = [file for file in files if name in (file, Path(file).name, Path(file).stem)]
    if len(found) != 1:
        near = difflib.get_close_matches(name, [*map(str, files), *(Path(file).name for file in files)], n=1)
        hint = f"; there are {', '.join(found)}" if found else f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"there is no page or example {name!r}{hint} (klamm docs lists them)")
    say_document((folder / found[0]).read_text(encoding="utf-8"))


def pages_folder() -> Path:
    """Returns the folder with `docs` and `examples`: in the wheel `klamm/pages`, in a checkout its top."""
    own = Path(__file__).resolve().parents[2]
    return own / "pages" if (own / "pages").is_dir() else own
