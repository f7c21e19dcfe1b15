"""`docs/configuration.md` says of every key what the models say.

`PYTHONPATH=tests/support python -m klammtest.pages.config_reference` writes it anew.
"""

from __future__ import annotations

from pathlib import Path

from klamm.core.plugins import plugin_host
from klammtest.pages.config_reference import BEGIN, reference

PAGE = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"


def test_the_page_is_what_the_models_say() -> None:
    head, mark, tables = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    assert head
    assert mark
    assert mark + tables == reference(plugin_host()), (
        "run `PYTHONPATH=tests/support python -m klammtest.pages.config_reference docs/configuration.md`"
    )
