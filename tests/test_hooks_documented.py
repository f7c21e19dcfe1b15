"""Every hook is on `docs/plugins.md` with its exact signature and contract, and has a test that names it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from klamm.core.hook_reference import BEGIN, hooks, reference, seam, signature

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
TESTS = {
    path: path.read_text(encoding="utf-8")
    for path in (ROOT / "tests").rglob("test_*.py")
    if path != Path(__file__).resolve()
}


def test_there_are_hooks_for_all_that_can_be_swapped() -> None:
    assert {name.removeprefix("klamm_") for name in hooks()} >= {
        "codecs", "coordinations", "envelopes", "offset_stores", "audits", "sinks", "serdes", "producer_interceptors",
        "consumer_interceptors", "topic_validators", "commands",
    }  # fmt: skip


@pytest.mark.parametrize("name", hooks())
def test_a_hook_is_documented_with_its_signature_and_contract(name: str) -> None:
    hook = hooks()[name]
    section = PAGE.partition(f"### {name}\n")[2].partition("\n### ")[0]
    assert f"@hookimpl\n{signature(hook)}\n" in section
    contract = inspect.getdoc(hook)
    assert contract
    assert contract in section
    assert "raises" in contract, "the contract says what happens when a plugin raises (design D7)"
    assert inspect.getsource(seam(hook)).rstrip() in section


def test_a_signature_is_the_one_in_the_specification() -> None:
    source = (ROOT / "core" / "hookspecs.py").read_text(encoding="utf-8")
    specified = re.findall(r"@hookspec\n(def .+?:)\s+# type", source)
    assert [signature(hook).removesuffix(" ...") for hook in hooks().values()] == specified


def test_the_page_has_no_hook_that_is_gone() -> None:
    assert re.findall(r"^### (klamm_\w+)$", PAGE, re.MULTILINE) == list(hooks())
    assert PAGE.endswith(reference()), "run `python -m klamm.core.hook_reference docs/plugins.md`"
    assert BEGIN in PAGE


@pytest.mark.parametrize("name", hooks())
def test_a_hook_has_a_test_that_names_it(name: str) -> None:
    assert [path for path, text in TESTS.items() if name in text], f"no test names {name}"
