"""Status: what the control plane reports on several kinds: addresses, proxies that count."""

from typing import Annotated, Literal

from koguma.model.condition import Condition
from koguma.model.schema import Spec, doc, keyed_by


class HostnameGeneratorRef(Spec):
    """The generator that is responsible."""

    core_name: Annotated[str, doc("Core name of the HostnameGenerator.")]


class HostnameAddress(Spec):
    """One name under which a service is reached."""

    hostname: Annotated[str, doc("The name.")] = ""
    origin: Annotated[Literal["HostnameGenerator", "Kubernetes"] | None, doc("Who gave the name.")] = None
    hostname_generator_ref: Annotated[HostnameGeneratorRef | None, doc("The generator, if one did.")] = None


class HostnameGeneratorStatus(Spec):
    """What became of one generator on this object."""

    hostname_generator_ref: Annotated[HostnameGeneratorRef, doc("The generator.")]
    conditions: Annotated[tuple[Condition, ...] | None, doc("Whether it gave a name."), keyed_by("type")] = (
        None
    )


class Vip(Spec):
    """A virtual address."""

    ip: Annotated[str, doc("The address.")] = ""


class DataplaneProxies(Spec):
    """How many proxies there are."""

    connected: Annotated[int, doc("Connected to the control plane of the zone.")] = 0
    healthy: Annotated[int, doc("With all inbounds healthy.")] = 0
    total: Annotated[int, doc("All.")] = 0
