"""An AWS Lambda function, called as if it were an HTTP service.

A request becomes an event with its method, path, headers and body, and the function's answer a response. With
`payloadPassthrough` the request's body is the event, and the function's result the response's body. The proxy
signs the call (SigV4), so that programs hold no credentials of AWS: these are in a Secret of the mesh, as
they are in `~/.aws/credentials`, or, without one, those of the proxy's machine: its environment and `~/.aws`,
and with `useInstanceRole` what its cloud gives it.

```yaml
type: MeshExternalService
name: thumbnails
mesh: default
spec:
  match:
    - type: InternalVIP
      value: thumbnails.ext.svc.local
      port: 80
      protocol: http
  destination:
    type: Extension
    extension:
      type: Lambda
      config:
        arn: arn:aws:lambda:us-west-2:123456789012:function:thumbnails
        credentials: {secret: aws-thumbnails}
```
"""

import configparser
import re
from collections.abc import Iterator
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from koguma.envoy import external, proto_json
from koguma.envoy.external import ExternalEndpoint, Tls
from koguma.envoy.proto_json import Data
from koguma.kinds import rules
from koguma.model.destination import DestinationParts, DestinationPlugin, DestinationPort, SecretRef
from koguma.model.schema import Spec, doc
from koguma.model.violation import Violation

_ARN: Final = re.compile(
    r"arn:(?P<partition>aws[a-z-]*):lambda:(?P<region>[a-z]{2,}(-[a-z]+)+-[0-9]+):[0-9]{12}"
    r":function:[A-Za-z0-9_-]{1,64}(:(\$LATEST|[A-Za-z0-9_-]{1,128}))?",
    re.ASCII,
)
_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----", re.ASCII)
_DOMAINS: Final = {"aws": "amazonaws.com", "aws-us-gov": "amazonaws.com", "aws-cn": "amazonaws.com.cn"}
_PORTS: Final = {"http": 80, "https": 443}
_EVENT_BYTES_MAX: Final = 6 * 1024 * 1024  # what AWS takes
_PROFILE: Final = "default"
_KEYS: Final = {"access_key_id": "aws_access_key_id", "secret_access_key": "aws_secret_access_key"}


class LambdaConfig(Spec):
    """Which function, and how it is called."""

    arn: Annotated[str, doc("The function, by its ARN; a version or an alias may follow the name.")]
    payload_passthrough: Annotated[
        bool | None, doc("Whether the body itself is the event; false by default: the request is.")
    ] = None
    invocation_mode: Annotated[
        Literal["Synchronous", "Asynchronous"] | None,
        doc("Whether the caller waits for the function (default), or only for AWS to have taken the event."),
    ] = None
    credentials: Annotated[
        SecretRef | None,
        doc("The Secret with the credentials, as in ~/.aws/credentials; the machine's own by default."),
    ] = None
    use_instance_role: Annotated[
        bool | None,
        doc("Whether, without a Secret, the machine's cloud is asked for its role too (EC2, ECS)."),
    ] = None
    endpoint: Annotated[
        str | None,
        doc("Where Lambda is, as a URL: a VPC endpoint, or a local stand-in; that of AWS by default."),
    ] = None
    ca_cert: Annotated[
        SecretRef | None, doc("The Secret with the CA of an https endpoint; the system's CAs by default.")
    ] = None


def validate(config: LambdaConfig) -> Iterator[Violation]:
    """What is wrong with a configuration."""
    arn = _ARN.fullmatch(config.arn)
    if arn is None:
        text = "must be arn:aws:lambda:REGION:ACCOUNT:function:NAME, and perhaps :VERSION"
        yield Violation("arn", text, "format")
    elif config.endpoint is None and arn["partition"] not in _DOMAINS:
        text = f'must be given, since the endpoint of partition "{arn["partition"]}" is not known'
        yield Violation("endpoint", text, "required")
    if config.endpoint is not None and _endpoint(config.endpoint) is None:
        text = "must be http:// or https://, a host, and perhaps a port, such as http://localhost:4566"
        yield Violation("endpoint", text, "format")
    if config.credentials is not None and config.use_instance_role:
        yield Violation("useInstanceRole", "does not go with credentials: give one of them", "forbidden")
    if config.ca_cert is not None and not (config.endpoint or "").startswith("https://"):
        yield Violation("caCert", "goes with an endpoint that begins with https://", "forbidden")


def warn(config: LambdaConfig) -> Iterator[str]:
    """What is legal, and perhaps not meant."""
    if config.payload_passthrough and config.invocation_mode == "Asynchronous":
        yield "an asynchronous call has no result: every response is empty, with status 202"


def _endpoint(url: str) -> ExternalEndpoint | None:
    """Where a URL leads; None where it is no URL of a host."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return None
    has_more = parts.username is not None or parts.path.strip("/") or parts.query or parts.fragment
    if parts.scheme not in _PORTS or has_more or port == 0:
        return None
    if not rules.is_ip(host) and not rules.is_dns_name(host):
        return None
    return ExternalEndpoint(host, port or _PORTS[parts.scheme])


def build(config: LambdaConfig, port: DestinationPort) -> DestinationParts:
    """A cluster at Lambda's endpoint, whose filters turn requests into signed calls of the function."""
    arn = _ARN.fullmatch(config.arn)
    assert arn is not None, config.arn
    endpoint, tls = _target(config, arn, port)
    keys, problem = _credentials(config, port)
    if problem:
        return DestinationParts(problems=(Violation("credentials.secret", problem),))
    if config.ca_cert is not None and (tls is None or not tls.ca):
        return DestinationParts(problems=(Violation("caCert.secret", "holds no certificate as PEM"),))
    host = endpoint.hostname
    return DestinationParts(
        cluster=external.cluster(port.name, (endpoint,), tls),
        # Whatever programs speak: HTTP/1.1 is what every stand-in and VPC endpoint of Lambda takes.
        http_options={"explicit_http_config": {"http_protocol_options": {}}},
        http_filters=(_RESTORE, _event(config, host), _sign(arn["region"], host, _provider(config, keys))),
        body_bytes_max=_EVENT_BYTES_MAX,
    )


def _target(
    config: LambdaConfig, arn: re.Match[str], port: DestinationPort
) -> tuple[ExternalEndpoint, Tls | None]:
    if config.endpoint is None:
        return ExternalEndpoint(f"lambda.{arn['region']}.{_DOMAINS[arn['partition']]}", 443), Tls()
    endpoint = _endpoint(config.endpoint)
    assert endpoint is not None, config.endpoint
    if config.endpoint.startswith("http://"):
        return endpoint, None
    return endpoint, Tls(ca=_certificates(port.text(config.ca_cert)) if config.ca_cert else "")


def _certificates(text: str) -> str:
    return "".join(f"{match[0]}\n" for match in _CERTIFICATE.finditer(text))


def _credentials(config: LambdaConfig, port: DestinationPort) -> tuple[Data, str]:
    """The credentials as Envoy reads them, or what is wrong with the Secret; no text of it is repeated."""
    if config.credentials is None:
        return {}, ""
    text = port.text(config.credentials)
    file = configparser.ConfigParser(interpolation=None, default_section="")
    try:
        file.read_string(text if text.lstrip().startswith("[") else f"[{_PROFILE}]\n{text}")
    except configparser.Error:
        return {}, "is not written as ~/.aws/credentials is: lines such as aws_access_key_id = ..."
    profile = file[_PROFILE] if file.has_section(_PROFILE) else {}
    missing = [key for key in _KEYS.values() if not profile.get(key)]
    if missing:
        return {}, f"has no {' and no '.join(missing)} in its profile [{_PROFILE}]"
    keys = {field: profile[key] for field, key in _KEYS.items()}
    token = profile.get("aws_session_token")
    return ({**keys, "session_token": token} if token else keys), ""


# Upstream filters run for every attempt, on the headers that the attempt before has left: without this filter
# the event of a retry would be about the call of Lambda instead of the request (measured, Envoy 1.40).
_RESTORE: Final[Data] = proto_json.extension(
    "envoy.filters.http.lua",
    "envoy.extensions.filters.http.lua.v3.Lua",
    default_source_code={
        "inline_string": """\
local REQUEST = {":method", ":path", "authorization", "content-length", "content-type"}
local CALL = {"x-amz-content-sha256", "x-amz-date", "x-amz-invocation-type", "x-amz-security-token"}
function envoy_on_request(handle)
  local headers, metadata = handle:headers(), handle:streamInfo():dynamicMetadata()
  local request = (metadata:get("koguma.lambda") or {})["request"]
  if request == nil then
    request = {}
    for _, name in ipairs(REQUEST) do request[name] = headers:get(name) end
    metadata:set("koguma.lambda", "request", request)
    return
  end
  for _, name in ipairs(CALL) do headers:remove(name) end
  for _, name in ipairs(REQUEST) do
    if request[name] then headers:replace(name, request[name]) else headers:remove(name) end
  end
end
"""
    },
)


def _event(config: LambdaConfig, host: str) -> Data:
    """The filter that makes the event and unpacks the function's answer.

    It signs, too, and shows its credentials in Envoy's configuration dump. So it gets none that matter, and
    the next filter signs again, in place of its signature and of an `authorization` that the program wrote,
    which is part of the event.
    """
    return proto_json.extension(
        "envoy.filters.http.aws_lambda",
        "envoy.extensions.filters.http.aws_lambda.v3.Config",
        arn=config.arn,
        payload_passthrough=bool(config.payload_passthrough),
        invocation_mode=(config.invocation_mode or "Synchronous").upper(),
        host_rewrite=host,
        credentials={"access_key_id": "unused", "secret_access_key": "unused"},
    )


def _provider(config: LambdaConfig, keys: Data) -> Data:
    """Where Envoy gets the credentials from.

    It asks the metadata service of a cloud only where that is wanted: Envoy 1.40 was seen to end when such a
    cluster went, probably with a question open, and where there is no service one is open nearly always.
    """
    if keys:
        return {"custom_credential_provider_chain": True, "inline_credential": keys}
    files: Data = {"environment_credential_provider": {}, "credentials_file_provider": {}}
    metadata: Data = {"container_credential_provider": {}, "instance_profile_credential_provider": {}}
    return {
        "custom_credential_provider_chain": True,
        **files,
        **(metadata if config.use_instance_role else {}),
    }


def _sign(region: str, host: str, provider: Data) -> Data:
    """The filter that signs; Envoy hides its keys in the configuration dump, and so do we."""
    # Only what AWS needs is signed: Envoy changes its own headers after this.
    signed = [{"exact": "host"}, {"prefix": "x-amz-"}]
    return proto_json.extension(
        "envoy.filters.http.aws_request_signing",
        "envoy.extensions.filters.http.aws_request_signing.v3.AwsRequestSigning",
        service_name="lambda",
        region=region,
        host_rewrite=host,
        match_included_headers=signed,
        credential_provider=provider,
    )


PLUGIN: Final = DestinationPlugin(
    type="Lambda",
    doc=__doc__,
    config=LambdaConfig,
    protocols=("http", "http2"),
    validate=validate,
    warn=warn,
    build=build,
)
