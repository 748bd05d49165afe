"""A hosted API that wants a key in every request.

HostedApi is a destination of another package than Koguma's. Programs call a name of the mesh without a key;
the proxy takes the calls to the API and writes the key, which stands in a Secret, into a header. Whoever
reads the program's configuration or its memory finds no key, and a new key needs no restart.

```yaml
type: MeshExternalService
name: weather
mesh: default
spec:
  match:
    - type: InternalVIP
      value: weather.ext.svc.local
      port: 80
      protocol: http
  destination:
    type: Extension
    extension:
      type: HostedApi
      config:
        host: api.weather.example
        key: {secret: weather-key}
        header: authorization
        prefix: "Bearer "
```
"""

import re
from collections.abc import Iterator
from typing import Annotated

from koguma.envoy import external, proto_json
from koguma.envoy.external import ExternalEndpoint, Tls
from koguma.model.destination import DestinationParts, DestinationPlugin, DestinationPort, SecretRef
from koguma.model.schema import Port, Spec, doc
from koguma.model.violation import Violation

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", re.ASCII)
_HEADER = re.compile(r"[a-z0-9-]+", re.ASCII)


class HostedApiConfig(Spec):
    """Where the API is, and its key."""

    host: Annotated[str, doc("The API's host name or IPv4 address.")]
    key: Annotated[SecretRef, doc("The Secret with the key.")]
    port: Annotated[Port | None, doc("Its port; 443, or 80 without TLS, by default.")] = None
    tls: Annotated[bool | None, doc("Whether the proxy starts TLS; true by default.")] = None
    header: Annotated[str | None, doc("The header for the key; x-api-key by default.")] = None
    prefix: Annotated[str | None, doc('What stands before the key, such as "Bearer ".', max_length=50)] = None


def validate(config: HostedApiConfig) -> Iterator[Violation]:
    """All that is wrong, each with its place below `config`."""
    if not _HOST.fullmatch(config.host):
        yield Violation("host", "must be a host name or an IPv4 address", "format")
    if config.header is not None and not _HEADER.fullmatch(config.header):
        yield Violation("header", "must be a header's name in lower case, such as x-api-key", "format")


def warn(config: HostedApiConfig) -> Iterator[str]:
    """What is legal, and perhaps not meant."""
    if config.tls is False:
        yield "without TLS everybody on the way can read the key"


def build(config: HostedApiConfig, port: DestinationPort) -> DestinationParts:
    """A cluster at the API, and a filter in it that writes the key, which Envoy gets apart from both."""
    key = port.text(config.key).strip()
    if not key or not key.isprintable():
        return DestinationParts(problems=(Violation("key.secret", "must hold one line: the key"),))
    tls = Tls() if config.tls is not False else None
    endpoint = ExternalEndpoint(config.host, config.port or (443 if tls else 80))
    return DestinationParts(
        cluster=external.cluster(port.name, (endpoint,), tls),
        http_filters=(_injector(config, port.secret_name("key")),),
        secrets={"key": {"generic_secret": {"secret": {"inline_string": key}}}},
    )


def _injector(config: HostedApiConfig, secret: str) -> proto_json.Data:
    """Envoy's filter that writes a credential into a header; see its documentation for the fields."""
    generic = proto_json.extension(
        "envoy.http.injected_credentials.generic",
        "envoy.extensions.http.injected_credentials.generic.v3.Generic",
        credential=proto_json.sds(secret),
        header=config.header or "x-api-key",
        header_value_prefix=config.prefix or "",
    )
    return proto_json.extension(
        "envoy.filters.http.credential_injector",
        "envoy.extensions.filters.http.credential_injector.v3.CredentialInjector",
        overwrite=True,
        credential=generic,
    )


PLUGIN = DestinationPlugin(
    type="HostedApi", doc=__doc__, config=HostedApiConfig, validate=validate, warn=warn, build=build
)
