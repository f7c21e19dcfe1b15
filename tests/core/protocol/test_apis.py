from __future__ import annotations

import re
from pathlib import Path

from klamm.core.broker.handlers.table import APIS
from klamm.core.protocol.apis import SPOKEN, ApiKey
from klammtest.apis import ADVERTISED, SERVED

PAGE = Path(__file__).resolve().parents[3] / "docs" / "protocol.md"


def test_the_page_lists_exactly_what_is_served() -> None:
    rows = re.findall(r"^\| ([A-Z_]+) \| (\d+) \| (\d+)–(\d+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {(name, int(key)): (int(low), int(high)) for name, key, low, high in rows} == {
        (api.name, int(api)): served for api, served in SERVED.items()
    }


def test_every_api_has_a_row_of_its_own() -> None:
    assert list(APIS) == list(ApiKey)
    assert set(SPOKEN) <= set(APIS), "our client sends nothing that our broker does not serve"


def test_produce_is_advertised_from_0_and_all_else_as_it_is_served() -> None:
    assert ADVERTISED[ApiKey.PRODUCE] == (0, SERVED[ApiKey.PRODUCE][1])
    assert {api for api in SERVED if ADVERTISED[api] != SERVED[api]} == {ApiKey.PRODUCE}
