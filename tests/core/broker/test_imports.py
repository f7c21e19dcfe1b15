"""A broker's memory is mostly what it has imported: nothing of what only others need."""

from __future__ import annotations

import subprocess
import sys

_ONLY_OTHERS = (
    "backports.zstd", "cramjam", "encodings.idna", "fastavro", "kazoo", "klamm.core.client", "klamm.hadoop.lake.config",
    "klamm.plugins.audit.config", "klamm.plugins.coordination.etcd.config", "klamm.plugins.envelopes.formats",
    "klamm.plugins.sinks.files",
    "klamm.schemas.avro.parsing", "klamm.schemas.options", "klamm.schemas.service.config", "klamm.schemas.store.schema",
    "lz4", "prometheus_client", "pyarrow", "pyruhvro", "rich", "sqlite3", "zstd",
)  # fmt: skip
_SCRIPT = """
import sys
sys.modules["hypothesis"] = None  # kio registers test strategies where it is installed; a broker's own place has none
import klamm.core.cli.broker, klamm.core.broker.server
from klamm.core.config.settings import load_settings
from klamm.core.transport.address import Address, listen
settings = load_settings({})
settings.host().call_hooks()
settings.codec_table()
settings.make_topic_validators()
listen(Address("127.0.0.1", 0)).close()
print(*sorted(sys.modules))
"""


def test_a_broker_imports_nothing_that_only_clients_codecs_and_other_commands_need() -> None:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    imported = set(done.stdout.split())
    assert "klamm.core.broker.server" in imported
    assert sorted(imported & set(_ONLY_OTHERS)) == []
