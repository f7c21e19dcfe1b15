from __future__ import annotations

import pytest

from klamm.core.config.settings import load_settings
from klamm.core.records.codecs import CodecTable


@pytest.fixture(scope="session")
def codecs() -> CodecTable:
    return load_settings({}).codec_table()
