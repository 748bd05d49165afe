"""Destination plugins: what `extension.type` of a MeshExternalService can name, and what such a plugin says.

A plugin is a record: the type of its configuration, and pure functions. `validate` says what is wrong with a
configuration, `build` what Envoy gets for a port that leads to it. A plugin makes one cluster for each port,
so that all that leads to clusters leads to it as well: routes, splits, mirrors, timeouts, retries.

Secrets are declared by their type: a field of type `SecretRef` names a Secret of the service's mesh. Whoever
writes such a name must be allowed to read that Secret, and `build` gets its text.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final

import msgspec

from koguma.model.redacted import Redacted
from koguma.model.schema import Json, Spec, doc
from koguma.model.violation import Violation

HTTP_PROTOCOLS: Final = ("http", "http2", "grpc")
BODY_BYTES_MAX: Final = 64 * 1024 * 1024
ConfigType = type[Spec]


class SecretRef(Spec):
    """A Secret of the service's mesh."""

    secret: Annotated[str, doc("Name of the Secret.", min_length=1)]


class DestinationPort(msgspec.Struct, frozen=True):
    """A port of a MeshExternalService for which a plugin builds."""

    name: str  # of its cluster: the port's KRI
    number: int
    protocol: str  # what programs speak: one of the plugin's `protocols`
    mesh: str
    secrets: Mapping[str, Redacted] = {}  # the Secrets that the configuration names; all of them exist

    def text(self, ref: SecretRef) -> str:
        """The text of a Secret that the configuration names."""
        return self.secrets[ref.secret].reveal()

    def secret_name(self, key: str) -> str:
        """The name under which Envoy finds the secret with this key in `DestinationParts.secrets` (SDS)."""
        return f"{self.name}:{key}"


class DestinationParts(msgspec.Struct, frozen=True):
    """What Envoy gets for a port, as plain data with the field names of Envoy's messages.

    `cluster` has its endpoints and TLS (`koguma.envoy.external.cluster` makes one); its name is set later.
    `http_filters` are upstream HTTP filters: they act on every request that reaches the cluster, also on a
    retry and on a mirrored one. `secrets` are Secrets without a name, which filters refer to by
    `DestinationPort.secret_name`. `body_bytes_max` is how much of a request's body a filter that needs all of
    it at once can hold; Envoy answers 413 to more, by default to more than 1 MiB.

    Where there are `problems`, nothing else counts: the port is not built, and these say why.
    """

    cluster: Mapping[str, Json] = {}
    http_options: Mapping[str, Json] = {}  # fields of HttpProtocolOptions, in place of the usual ones
    http_filters: tuple[Mapping[str, Json], ...] = ()  # in order; each with `name` and `typed_config`
    secrets: Mapping[str, Mapping[str, Json]] = {}
    body_bytes_max: Annotated[int, msgspec.Meta(ge=0, le=BODY_BYTES_MAX)] = 0
    problems: tuple[Violation, ...] = ()  # paths begin below `config`


def _nothing(_config: Any) -> Iterator[Any]:
    return iter(())


class DestinationPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """One type of destination. `validate`, `warn` and `build` see a configuration that fits its type.

    They read their arguments and nothing else: the engine calls them again whenever it wants to, and equal
    arguments must give equal answers.
    """

    type: str  # what users write in `extension.type`
    doc: str  # a page of the manual, which begins with a sentence
    config: ConfigType
    build: Callable[[Any, DestinationPort], DestinationParts]
    protocols: tuple[str, ...] = HTTP_PROTOCOLS  # of ports that can lead to it
    validate: Callable[[Any], Iterator[Violation]] = _nothing  # paths begin below `config`
    warn: Callable[[Any], Iterator[str]] = _nothing
    origin: str = ""  # the package that brings it; set when it is loaded
