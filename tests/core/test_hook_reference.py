"""Every hook is on `docs/plugins.md` with its exact signature and contract; `tests/plugins/test_hooks.py` uses each."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from klamm.core.hookspecs import hookimpl
from klammtest.pages.hook_reference import BEGIN, hooks, made_by, reference, signature

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")


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
    assert all(inspect.getsource(made).rstrip() in section for made in made_by(hook))


@pytest.mark.parametrize("name", hooks())
def test_the_pages_code_has_the_signature_of_the_specification(name: str) -> None:
    section = PAGE.partition(f"### {name}\n")[2].partition("\n### ")[0]
    code = section.partition("```py\n")[2].partition("\n```")[0]
    defined: dict[str, Any] = {"hookimpl": hookimpl}
    exec(f"from __future__ import annotations\n{code}", defined)
    assert inspect.signature(defined[name]) == inspect.signature(hooks()[name])


def test_the_page_has_no_hook_that_is_gone() -> None:
    assert re.findall(r"^### (klamm_\w+)$", PAGE, re.MULTILINE) == list(hooks())
    assert PAGE.endswith(reference()), (
        "run `PYTHONPATH=tests/support python -m klammtest.pages.hook_reference docs/plugins.md`"
    )
    assert BEGIN in PAGE
