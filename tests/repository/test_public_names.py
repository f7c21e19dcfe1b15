"""The public names: `klamm`, `klamm.errors`, `klamm.plugin`; and what loading them does not load."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import klamm
import klamm.testing.contracts

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = ROOT / "src" / "klamm"


def names_for_the_type_checker(module: ModuleType) -> set[tuple[str, str]]:
    """Module and name of each import under `if TYPE_CHECKING:` in `module`."""
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [each for block in blocks for each in block.body if isinstance(each, ast.ImportFrom)]
    return {(each.module or "", alias.name) for each in imports for alias in each.names}


@pytest.mark.parametrize(
    "module", [klamm, klamm.plugin, klamm.testing, klamm.testing.contracts], ids=lambda module: module.__name__
)
def test_what_is_imported_on_first_use_is_what_a_type_checker_sees(module: ModuleType) -> None:
    seen = names_for_the_type_checker(module)
    assert {name for _, name in seen} == set(vars(module)["__all__"]) - {"__version__"}
    for source, name in seen:
        own = sys.modules.get(f"{source}.{name}") if source == "klamm" else None
        getattr(module, name)
        assert getattr(module, name) is (own or getattr(sys.modules[source], name))


def test_all_names_each_error_that_is_imported() -> None:
    tree = ast.parse((PUBLIC / "errors.py").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module != "__future__"]
    assert set(klamm.errors.__all__) == {alias.asname or alias.name for node in imports for alias in node.names}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'klamm' has no attribute 'Prodcuer'"):
        klamm.Prodcuer  # type: ignore[attr-defined]  # noqa: B018


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after `code`."""
    code = f"{code}\nimport sys\nprint('loaded', *sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return set(run.stdout.splitlines()[-1].split())


def test_importing_klamm_loads_none_of_its_modules() -> None:
    assert {name for name in loaded_by("import klamm") if name.startswith("klamm")} == {"klamm", "klamm._lazy"}


def test_the_help_loads_no_configuration_client_or_broker() -> None:
    """Modules that once made `klamm --help` slow: pydantic's models, and the plugins' own parts."""
    shown = loaded_by("import sys\nsys.argv = ['klamm', '--help']\nfrom klamm.core.cli.main import main\ntry:\n    main()\nexcept SystemExit:\n    pass")  # fmt: skip  # noqa: E501
    assert "typer" in shown
    rooms = ("klamm.core.config", "klamm.core.client", "klamm.core.broker", "klamm.core.records", "pydantic")
    assert not [name for name in shown if name.startswith(rooms)]
