"""Several brokers of one host from one file (`klamm broker --brokers 3`).

The first broker is the file's own. The n-th after it has an id, ports and a metrics port that are n higher, and a
log directory beside the file's, with its id at the end. So a file that ran one broker can run several, and the first
one finds its logs.
"""

from __future__ import annotations

from ..errors import ConfigError
from .address import ListenerAddress
from .dynamic import given, validated
from .sections.broker import BrokerConfig

_LAST_PORT = 65_535


def nth_broker(file: BrokerConfig, index: int) -> BrokerConfig:
    """Returns the configuration of the broker with the id `broker.id` + `index`."""
    if index == 0:
        return file
    values = given(file)
    values["broker.id"] = broker_id = file.broker_id + index
    values["listeners"] = _shifted(file.bound(), index)
    if file.advertised_listeners is not None:
        values["advertised.listeners"] = _shifted(file.advertised(), index)
    if file.metrics_port > 0:
        values["metrics.port"] = file.metrics_port + index
    values["log.dirs"] = file.log_dirs.with_name(f"{file.log_dirs.name}-{broker_id}")
    return validated(values)


def check_host(file: BrokerConfig, count: int) -> None:
    """Raises `ConfigError` in one line if `count` brokers cannot all have distinct ports."""
    option = f"--brokers {count}: " if count > 1 else ""
    taken: dict[tuple[str, int], str] = {}
    for index in range(count):
        owner = f"broker {file.broker_id + index}"
        ports = [(f"listener {address.name}", address.host, address.port + index) for address in file.bound()]
        ports = [(what, host, port) for what, host, port in ports if port != index]  # port 0: a free one
        if file.metrics_port > 0:
            ports.append(("metrics.port", file.metrics_host, file.metrics_port + index))
        for what, host, port in ports:
            if port > _LAST_PORT:
                raise ConfigError(f"{option}{what} of {owner} would have the port {port}; the last is 65535")
            other = taken.setdefault((host, port), f"{what} of {owner}")
            if other != f"{what} of {owner}":
                needed = f"{count} ports in a row" if count > 1 else "a port of its own"
                raise ConfigError(
                    f"{option}{what} of {owner} would have the port {port}, which {other} has; each listener needs "
                    f"{needed}"
                )


def _shifted(addresses: list[ListenerAddress], index: int) -> str:
    shifted = (address._replace(port=address.port + index if address.port else 0) for address in addresses)
    return ",".join(str(address) for address in shifted)
