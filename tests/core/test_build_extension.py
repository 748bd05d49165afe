"""What plugins make of external services: ours, and those of others, whose mistakes stay their own."""

import itertools
import textwrap
from typing import Annotated, Any

import building
import pytest

from koguma.core import pipeline
from koguma.core.build import encoding, external, snapshot
from koguma.core.build.network import NodeMetadata
from koguma.core.incremental import Db
from koguma.envoy import external as envoy
from koguma.envoy import proto_json
from koguma.envoy.external import ExternalEndpoint
from koguma.kinds import mesh_external_service
from koguma.model.destination import DestinationParts, DestinationPlugin, DestinationPort, SecretRef
from koguma.model.kind import Kinds
from koguma.model.resource import Key, Resource
from koguma.model.schema import Spec, doc
from koguma.model.violation import Violation
from tests.core.external_services import ALL, CONTROL_PLANE, ENCODER, base64_of, built

ARN = "arn:aws:lambda:us-west-2:123456789012:function:my-function"
AT = "spec.destination.extension.config"
CREDENTIALS = "[default]\naws_access_key_id = AKID\naws_secret_access_key = very=secret\n"
OPTIONS = "http_options"


def service(config: Any, type_: str = "Lambda", protocol: str = "http") -> dict[str, Any]:
    match = {"type": "InternalVIP", "value": "a.ext.svc.local", "port": 80, "protocol": protocol}
    extension = {"type": type_, "config": config}
    return {"match": [match], "destination": {"type": "Extension", "extension": extension}}


def filters(found: external.ExternalCluster) -> dict[str, Any]:
    return {each["name"]: each["typed_config"] for each in found.parts[OPTIONS]["http_filters"]}


@pytest.mark.parametrize(
    "text",
    [
        CREDENTIALS,
        CREDENTIALS.removeprefix("[default]\n"),
        f"[other]\naws_access_key_id=x\n{CREDENTIALS}",
        CREDENTIALS.replace("\n", "\r\n"),
    ],
)
def test_credentials_are_read_as_in_the_file_of_the_aws_tools(text: str):
    found = built(service({"arn": ARN, "credentials": {"secret": "aws"}}), aws=text)
    assert found.problem == ""
    provider = filters(found)["envoy.filters.http.aws_request_signing"]["credential_provider"]
    assert provider["inline_credential"] == {"access_key_id": "AKID", "secret_access_key": "very=secret"}
    assert "very=secret" not in str(filters(found)["envoy.filters.http.aws_lambda"])


def test_a_session_token_is_part_of_the_credentials():
    found = built(
        service({"arn": ARN, "credentials": {"secret": "aws"}}), aws=f"{CREDENTIALS}aws_session_token=t"
    )
    provider = filters(found)["envoy.filters.http.aws_request_signing"]["credential_provider"]
    assert provider["inline_credential"]["session_token"] == "t"


PROBLEMS = {
    "": "has no aws_access_key_id and no aws_secret_access_key in its profile [default]",
    "[other]\naws_access_key_id = AKID": "has no aws_access_key_id and no aws_secret_access_key in its",
    "aws_access_key_id = AKID": "has no aws_secret_access_key in its profile [default]",
    "very=secret\nvery=secret": "is not written as ~/.aws/credentials is",
    "[default\nvery secret": "is not written as ~/.aws/credentials is",
    "[default]\n  \x00\ufffd": "is not written as ~/.aws/credentials is",
}


@pytest.mark.parametrize(("text", "words"), PROBLEMS.items())
def test_a_secret_that_holds_no_credentials_is_named_and_not_repeated(text: str, words: str):
    found = built(service({"arn": ARN, "credentials": {"secret": "aws"}}), aws=text)
    assert found.problem.startswith(f"{AT}.credentials.secret: {words}")
    assert "very" not in found.problem
    assert found.parts == {}


def test_an_endpoint_of_ones_own_is_called_with_or_without_tls():
    plain = built(service({"arn": ARN, "endpoint": "http://localhost:4566"})).parts["cluster"]
    (locality,) = plain["load_assignment"]["endpoints"]
    (endpoint,) = locality["lb_endpoints"]
    assert endpoint["endpoint"]["address"] == proto_json.address("localhost", 4566)
    assert "transport_socket" not in plain

    config = {"arn": ARN, "endpoint": "https://10.0.0.1", "caCert": {"secret": "ca"}}
    pem = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
    found = built(service(config), ca=f"key\n{pem}")
    tls = found.parts["cluster"]["transport_socket"]["typed_config"]["common_tls_context"]
    assert tls["validation_context"]["trusted_ca"] == {"inline_string": pem}
    assert built(service(config), ca="no").problem == f"{AT}.caCert.secret: holds no certificate as PEM"


def test_what_was_stored_before_the_plugin_came_is_judged_when_it_is_built():
    assert built(service({"arn": "no"})).problem.startswith(f"{AT}.arn: must be arn:aws:lambda")
    assert built(service({"arn": 7})).problem.startswith(f"{AT}.arn: in body must be of type string")
    assert built(service({"arn": ARN}, protocol="tcp")).problem.endswith("takes http, http2, not tcp")
    reserved = {"arn": ARN, "credentials": {"secret": "dataplane-token-signing-key-default-1"}}
    assert built(service(reserved)).problem.startswith(f"{AT}.credentials.secret: ")


class OtherConfig(Spec):
    """What the plugins below are told."""

    key: Annotated[SecretRef | None, doc("A Secret.")] = None


def plugin(build: Any, **parts: Any) -> DestinationPlugin:
    return DestinationPlugin(type="Other", doc="Other.", config=OtherConfig, build=build, **parts)


def other(build: Any, secret: str = "", protocol: str = "http", **parts: Any) -> Any:
    """What a plugin makes of a port, in a mesh with this Secret."""
    return external.of(*other_db(build, secret, protocol, **parts), "80")


def other_db(build: Any, secret: str = "", protocol: str = "http", **parts: Any) -> tuple[Db, Key]:
    """A mesh with this Secret, and a service that leads to a plugin."""
    kind = mesh_external_service.with_extensions((plugin(build, **parts),))
    kinds = Kinds([kind if each.name == kind.name else each for each in ALL])
    config = {"key": {"secret": "key"}} if secret else {}
    about = {"mesh": "default", "zone": "east"}
    stored = [
        Resource(
            kind=kind.name, name="out", core_name="out", spec=service(config, "Other", protocol), **about
        ),
        Resource(kind="Secret", name="key", core_name="key", spec={"data": base64_of(secret)}, **about),
    ]
    db = pipeline.load(kinds, CONTROL_PLANE, stored)
    db.set(encoding.ENCODER, "envoy", ENCODER)
    return db, stored[0].key


def proper(_config: Any, port: DestinationPort) -> DestinationParts:
    return DestinationParts(cluster=envoy.cluster(port.name, (ExternalEndpoint("10.0.0.1", 80),)))


def test_a_plugin_without_filters_gives_a_plain_cluster():
    found = other(proper)
    assert found.problem == ""
    assert "http_filters" not in found.parts[OPTIONS]
    assert found.parts["cluster"]["name"] == "kri_extsvc_default_east__out_80"
    assert OPTIONS not in other(proper, protocol="tcp", protocols=("tcp",)).parts


def test_secrets_of_a_plugin_are_sent_apart_from_the_cluster():
    def build(config: OtherConfig, port: DestinationPort) -> DestinationParts:
        secret = {"generic_secret": {"secret": {"inline_string": port.text(config.key)}}}
        parts = proper(config, port)
        return DestinationParts(cluster=parts.cluster, secrets={"api-key": secret})

    found = other(build, "very secret")
    assert [each.name for each in found.secrets] == ["kri_extsvc_default_east__out_80:api-key"]
    assert "very secret" not in str(found)


def returning(parts: Any) -> Any:
    return lambda _config, _port: parts


def raising(text: str) -> Any:
    def build(_config: Any, _port: Any) -> DestinationParts:
        raise RuntimeError(text)

    return build


BROKEN = {
    "it raises": (raising("my own mistake"), "RuntimeError: my own mistake"),
    "it returns nothing": (returning(None), "TypeError: its build returned NoneType and no Destin"),
    "its cluster is none": (returning(DestinationParts(cluster=7)), "ValidationError: Expected `object`"),
    "its filters are no filters": (returning(DestinationParts(http_filters=("lua",))), "ValidationError"),
    "its filter is endless": (
        returning(DestinationParts(cluster={"a": itertools.count()})),
        "TypeError: Encoding objects of type itertools.count",
    ),
    "it wants all memory": (returning(DestinationParts(body_bytes_max=10**12)), "ValidationError"),
    "its problem is a word": (returning(DestinationParts(problems=("no",))), "AttributeError"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_plugin_that_fails_takes_its_own_port_away_and_is_named(name: str):
    build, words = BROKEN[name]
    found = other(build, origin="package other")
    assert found.parts == {}
    assert f'{AT}: the plugin of type "Other" cannot build it: {words}' in found.problem
    assert found.problem.endswith("; tell the makers of package other")


def test_what_a_plugin_raises_is_not_repeated_where_it_was_given_secrets():
    found = other(lambda config, port: raising(port.text(config.key))(config, port), "very secret")
    assert "RuntimeError at test_build_extension.py:" in found.problem
    assert "very secret" not in found.problem


def test_a_problem_that_a_plugin_knows_has_the_path_of_its_field():
    found = other(returning(DestinationParts(problems=(Violation("key.secret", "is too short"),))))
    assert found.problem == f"{AT}.key.secret: is too short"


def test_a_secret_that_envoy_cannot_read_is_named_and_not_repeated():
    found = other(returning(DestinationParts(secrets={"key": {"generic_secret": {"very secret": 1}}})))
    assert found.problem.endswith("cannot read: kri_extsvc_default_east__out_80:key")
    assert "very secret" not in found.problem


def test_a_plugin_that_speaks_only_http_takes_no_connections():
    for protocols, takes in ((("http",), False), (("http", "tcp"), True)):
        db, key = other_db(proper, protocols=protocols)
        assert external.takes_connections(db, key, "80") is takes
    db, key = other_db(proper)
    assert external.takes_connections(db, key, "no such port")


def test_calls_of_domains_and_addresses_reach_a_plugin_as_those_of_its_name_do():
    mesh = f"""
    type: Mesh
    name: default
    ---
    type: Dataplane
    mesh: default
    name: web
    networking:
      address: 127.0.0.2
      inbound: [{{port: 21080, tags: {{kuma.io/service: web}}}}]
      transparentProxying: {{redirectPortInbound: 15006, redirectPortOutbound: 15001}}
    ---
    type: MeshExternalService
    name: fn
    mesh: default
    spec:
      match:
        - {{type: Domain, value: fn.example.com, port: 80, protocol: http}}
        - {{type: IP, value: 10.9.9.9, port: 80, protocol: http}}
      destination: {{type: Extension, extension: {{type: Lambda, config: {{arn: "{ARN}"}}}}}}
    """
    db = building.database(building.objects(textwrap.dedent(mesh)), {"web": NodeMetadata()})
    made = snapshot.of(db, building.proxy(db, "web"))
    assert made.failures == ()
    cluster = "kri_extsvc_default_east__fn_80"
    leading = [each for each in map(str, map(building.decoded, made)) if f"'cluster': '{cluster}'" in each]
    assert len(leading) == 2
    assert all("'request_body_buffer_limit': '6291456'" in routes for routes in leading)
