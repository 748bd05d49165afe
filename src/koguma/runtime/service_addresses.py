"""Service addresses: where the services are that webhooks and APIServices name, as the operator says.

A service is called by the name `NAME.NAMESPACE.svc`, which its certificate has too. Without Kubernetes
nobody answers for such names, and users must not choose what the control plane connects to; so a setting says
where each one is.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from koguma.model import names

SETTING: Final = "outgoingServices"
_PORT_MAX: Final = 65535
_HINT: Final = "write NAMESPACE/NAME=HOST:PORT, such as outside/notes=10.1.2.3:8443"


class ServiceAddress(msgspec.Struct, frozen=True):
    """A service, and the host and port where it is."""

    namespace: str
    name: str
    host: str
    port: int

    @property
    def service_host(self) -> str:
        """The name by which it is called."""
        return host_of(self.namespace, self.name)


def host_of(namespace: str, name: str) -> str:
    """The host name of a service."""
    return f"{name}.{namespace}.svc"


def is_service(host: str) -> bool:
    """Whether a host is the name of a service."""
    return host.endswith(".svc")


def parse(text: str) -> ServiceAddress:
    """An entry of the setting; ValueError says what it should look like."""
    service, _, address = text.strip().partition("=")
    namespace, _, name = service.partition("/")
    host, _, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) <= _PORT_MAX
    if not (names.is_dns_label(namespace) and names.is_dns_label(name) and host and is_port):
        raise ValueError(f'"{text}" names no service and its address; {_HINT}')
    return ServiceAddress(namespace, name, host.strip("[]"), int(port))


def by_host(texts: Iterable[str]) -> Mapping[str, ServiceAddress]:
    """All entries of the setting, by the names by which services are called."""
    return {address.service_host: address for address in map(parse, texts)}
