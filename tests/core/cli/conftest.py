"""`klamm …` in this process: exit status, stdout, stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from klamm.core.cli.main import main


@dataclass
class Done:
    status: int
    out: str
    err: str


Klamm = Callable[..., Done]


@pytest.fixture
def klamm(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Klamm:
    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["klamm", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Done(int(left.value.code or 0), out, err)

    return run
