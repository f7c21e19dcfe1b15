from __future__ import annotations

import re
from pathlib import Path

from klamm.core.config.section import definitions, to_string
from klamm.core.config.sections.producer import ProducerConfig

PAGE = Path(__file__).resolve().parents[4] / "docs" / "producer.md"


def test_the_page_names_every_key_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `([a-z.]+)` \| (?:`([^`]*)`)? *\|", PAGE.read_text(), re.MULTILINE))
    keys = {item.name: to_string(item.default) for item in definitions(ProducerConfig)}
    assert rows == keys
