from __future__ import annotations

import sys
from importlib import import_module

import pytest

from klamm.core.errors import ConfigError


def test_without_pyarrow_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain install has none; `poll_arrow` imports the module on first use."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "klamm.core.client.consumer.arrow", raising=False)
    with pytest.raises(ConfigError, match="pip install 'pyarrow"):
        import_module("klamm.core.client.consumer.arrow")
