"""Calls of AWS Lambda through real Envoys, signed for a stand-in of its endpoint that verifies signatures.

The tests share one mesh and run in order.
"""

import base64
import contextlib
import itertools
import json
import ssl
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests import build
from tests.core.external_servers import AUTHORITY, STRANGER, made
from tests.http_client import Response
from tests.lambda_service import Event, LambdaService, body_of
from tests.live_mesh import LiveMesh, Sidecar, steady_traffic
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow

ARN = "arn:aws:lambda:us-west-2:123456789012:function:"
KEY, SECRET = "AKIDTHUMBNAILS", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
NEW_KEY, NEW_SECRET = "AKIDNEWER", "another/secret+ofAWS"
TOKEN = "a/session+token=="
NAMES = ("thumbnails", "raw", "later", "secure", "own", "missing")
OWN_KEY, OWN_SECRET = "AKIDMACHINE", "the/secret+of-the-machine"


def credentials(name: str, key: str = KEY, secret: str = SECRET) -> Any:
    keys = {"access_key_id": key, "secret_access_key": secret, "session_token": TOKEN}
    text = "\n".join(("[default]", *(f"aws_{name} = {value}" for name, value in keys.items())))
    return build.secret(name, base64.b64encode(text.encode()).decode())


class LambdaMesh(LiveMesh):
    """A service `backend`, and `web`, which calls it and functions of AWS."""

    web: Sidecar
    aws: LambdaService
    aws_tls: LambdaService

    def function(self, name: str, **config: Any) -> Any:
        written = {
            "arn": f"{ARN}{name}",
            "credentials": {"secret": "aws"},
            "endpoint": f"http://127.0.0.1:{self.aws.port}",
            **config,
        }
        match = {"type": "InternalVIP", "value": f"{name}.test", "port": 80, "protocol": "http"}
        extension = {"type": "Lambda", "config": written}
        destination = {"type": "Extension", "extension": extension}
        return build.document(
            "MeshExternalService", name, spec={"match": [match], "destination": destination}
        )

    def start(self) -> None:
        ports = {name: free_port() for name in ("backend", *NAMES)}
        outbounds = [
            {"port": ports[name], "backendRef": {"kind": "MeshExternalService", "name": name, "port": 80}}
            for name in NAMES
        ]
        outbounds.append({"port": ports["backend"], "tags": {"kuma.io/service": "backend"}})
        self.apply(credentials("aws"), *(self.function(name) for name in NAMES if name != "missing"))
        self.apply(build.dataplane("web", inbound=[], outbound=outbounds))
        self.sidecar("backend-1", "backend")
        self.web = self.sidecar("web", serves=False)
        self.web.outbounds = ports
        until(lambda: self.web.call("backend").status == 200, "backend answers")


def echo(event: Event) -> tuple[int, Any]:
    """A function that answers with what it was called with."""
    return 200, {"statusCode": 201, "headers": {"x-from": "lambda"}, "body": json.dumps(event)}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LambdaMesh]:
    directory = tmp_path_factory.mktemp("aws")
    pair = made("lambda", ("127.0.0.1",), AUTHORITY)
    (directory / "aws.pem").write_text(pair.pem + pair.key_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "aws.pem")
    aws, aws_tls = LambdaService({KEY: SECRET}), LambdaService({KEY: SECRET}, context)
    for service in (aws, aws_tls):
        service.functions = {f"{ARN}{name}": echo for name in NAMES}
    with contextlib.ExitStack() as stack:
        for service in (aws, aws_tls):
            stack.callback(service.stop)
        mesh = LambdaMesh(directory)
        # What Envoy finds by itself, without asking a cloud that is not there.
        mesh.environment |= {"AWS_EC2_METADATA_DISABLED": "true"}
        mesh.environment |= {"AWS_ACCESS_KEY_ID": OWN_KEY, "AWS_SECRET_ACCESS_KEY": OWN_SECRET}
        mesh.aws, mesh.aws_tls = aws, aws_tls
        stack.enter_context(mesh)
        mesh.start()
        yield mesh


def event_of(response: Response) -> Event:
    assert response.status == 201, (response.status, response.text)
    assert response.headers["x-from"] == "lambda"
    return response.json


def test_a_request_becomes_an_event_and_the_answer_a_response(mesh: LambdaMesh):
    path = "/pictures/1?size=2&name=a%20b"
    event = event_of(
        mesh.web.call("thumbnails", path=path, Authorization="Bearer of-the-program", X_Amz_Date="today")
    )
    assert (event["method"], event["raw_path"]) == ("GET", path)
    assert event["query_string_parameters"] == {"size": "2", "name": "a%20b"}
    assert event["headers"]["authorization"] == "Bearer of-the-program"
    assert event["headers"]["x-amz-date"] == "today"
    assert mesh.aws.refused == []
    headers = dict(mesh.aws.calls[-1]["headers"])
    assert headers["x-amz-security-token"] == TOKEN


@pytest.mark.parametrize(
    ("body", "type_"),
    [(b"a text", "text/plain"), (bytes(range(256)), "image/png"), (b"x" * 2_000_000, "text/plain")],
)
def test_a_body_reaches_the_function(mesh: LambdaMesh, body: bytes, type_: str):
    event = event_of(mesh.web.call("thumbnails", "PUT", "/", body=body, Content_Type=type_))
    assert (event["method"], body_of(event)) == ("PUT", body)


def test_a_body_that_aws_would_not_take_is_refused_by_the_proxy(mesh: LambdaMesh):
    n_calls = len(mesh.aws.calls)
    assert mesh.web.call("thumbnails", "POST", "/", body=b"x" * 7_000_000).status == 413
    assert len(mesh.aws.calls) == n_calls


def test_a_failed_function_is_seen_by_the_caller(mesh: LambdaMesh):
    mesh.aws.functions[f"{ARN}raw"] = lambda _event: (299, {"errorMessage": "it failed"})
    response = mesh.web.call("raw")
    assert response.headers["x-amz-function-error"] == "Unhandled"
    assert response.json == {"errorMessage": "it failed"}


def test_with_passthrough_bodies_are_events_and_results(mesh: LambdaMesh):
    mesh.aws.functions[f"{ARN}raw"] = lambda event: (200, {"doubled": event["number"] * 2})
    mesh.apply_and_wait(mesh.function("raw", payloadPassthrough=True))
    assert mesh.web.call("raw", "POST", "/", body={"number": 21}).json == {"doubled": 42}


def test_an_asynchronous_call_is_taken_and_not_waited_for(mesh: LambdaMesh):
    mesh.apply_and_wait(mesh.function("later", invocationMode="Asynchronous"))
    assert mesh.web.call("later", path="/x").status == 202
    call = mesh.aws.calls[-1]
    assert (call["mode"], call["event"]["raw_path"]) == ("Event", "/x")


def test_without_a_secret_the_credentials_of_the_machine_sign(mesh: LambdaMesh):
    mesh.apply_and_wait(mesh.function("own", credentials=None))
    assert mesh.web.call("own").status == 403
    assert mesh.aws.refused.pop() == "The security token included in the request is invalid."
    mesh.aws.keys[OWN_KEY] = OWN_SECRET
    assert mesh.web.call("own").status == 201


def test_tls_to_the_endpoint_is_verified(mesh: LambdaMesh):
    endpoint = f"https://127.0.0.1:{mesh.aws_tls.port}"
    for name, authority in (("right", AUTHORITY), ("wrong", STRANGER)):
        mesh.apply(build.secret(name, base64.b64encode(authority.pem.encode()).decode()))
    mesh.apply_and_wait(mesh.function("secure", endpoint=endpoint, caCert={"secret": "wrong"}))
    assert mesh.web.call("secure").status == 503
    mesh.apply_and_wait(mesh.function("secure", endpoint=endpoint, caCert={"secret": "right"}))
    until(lambda: mesh.web.call("secure").status == 201, "the right CA is used")
    assert mesh.aws_tls.refused == []


TO = {"kind": "MeshExternalService", "name": "thumbnails"}


def test_a_retry_calls_the_function_with_the_same_event(mesh: LambdaMesh):
    failures = iter([True, True, False])

    def fails_twice(event: Event) -> tuple[int, Any]:
        return (503, {"message": "no"}) if next(failures) else echo(event)

    mesh.aws.functions[f"{ARN}thumbnails"] = fails_twice
    conf = {"http": {"numRetries": 3, "retryOn": ["5xx"], "backOff": {"baseInterval": "10ms"}}}
    mesh.apply_and_wait(build.policy("MeshRetry", "again", (TO, conf)))
    n_calls = len(mesh.aws.calls)
    body = bytes(range(256))
    response = mesh.web.call("thumbnails", "PUT", "/again", body=body, Authorization="Bearer x")
    events = [call["event"] for call in mesh.aws.calls[n_calls:]]
    assert event_of(response) == events[-1]
    assert len(events) == 3
    for event in events:
        assert (event["method"], event["raw_path"], body_of(event)) == ("PUT", "/again", body)
        assert event["headers"]["authorization"] == "Bearer x"
        assert not any(name.startswith("x-amz") for name in event["headers"])
    assert mesh.aws.refused == []
    mesh.aws.functions[f"{ARN}thumbnails"] = echo
    mesh.delete_and_wait("meshretries", "again")


def test_a_timeout_holds_for_a_function(mesh: LambdaMesh):
    mesh.aws.functions[f"{ARN}thumbnails"] = lambda event: (time.sleep(2), echo(event))[1]
    mesh.apply_and_wait(build.policy("MeshTimeout", "quick", (TO, {"http": {"requestTimeout": "200ms"}})))
    assert mesh.web.call("thumbnails").status == 504
    mesh.delete_and_wait("meshtimeouts", "quick")
    mesh.aws.functions[f"{ARN}thumbnails"] = echo
    assert mesh.web.call("thumbnails").status == 201


def test_a_route_splits_calls_between_a_function_and_a_service(mesh: LambdaMesh):
    rewrite = {
        "type": "URLRewrite",
        "urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/new"}},
    }
    refs = [build.service_ref("backend", port=80, weight=1), {**TO, "port": 80, "weight": 1}]
    only = [{**TO, "port": 80}]
    route = build.http_route(
        "half",
        build.http_rule("/both", backends=refs),
        build.http_rule("/old", filters=[rewrite], backends=only),
    )
    port = mesh.request("GET", "/meshes/default/meshservices/backend").json["spec"]["ports"][0]["port"]
    refs[0]["port"] = port
    mesh.apply_and_wait(route)
    found = Counter(mesh.web.call("backend", path="/both").headers["x-from"] for _ in range(40))
    assert set(found) == {"lambda", "backend-1"}
    event = event_of(
        mesh.web.call("backend", "POST", "/old/x", body=b"y" * 1_500_000, Content_Type="text/plain")
    )
    assert event["raw_path"] == "/new/x"
    assert mesh.aws.refused == []
    mesh.delete_and_wait("meshhttproutes", "half")


def test_wrong_credentials_are_refused_by_aws_and_a_new_secret_mends_it(mesh: LambdaMesh):
    mesh.apply_and_wait(credentials("aws", secret="wrong"))
    until(lambda: mesh.web.call("thumbnails").status == 403, "the wrong secret is used")
    assert "does not match the signature" in mesh.web.call("thumbnails").json["message"]
    mesh.aws.keys[NEW_KEY] = NEW_SECRET
    mesh.apply_and_wait(credentials("aws", NEW_KEY, NEW_SECRET))
    until(lambda: mesh.web.call("thumbnails").status == 201, "the new secret is used")
    mesh.aws.functions[f"{ARN}raw"] = echo


def test_no_call_fails_while_credentials_and_settings_change(mesh: LambdaMesh):
    pairs = itertools.cycle(((KEY, SECRET), (NEW_KEY, NEW_SECRET)))
    with steady_traffic(mesh.web.outbounds["thumbnails"]) as counts:
        for number in range(6):
            mesh.apply_and_wait(credentials("aws", *next(pairs)))
            mesh.apply_and_wait(mesh.function("thumbnails", arn=f"{ARN}{NAMES[number % 2]}"))
    assert set(counts) == {"201"}, counts
    mesh.apply_and_wait(mesh.function("thumbnails"))


@pytest.mark.expected_errors("a part of the configuration cannot be built")
def test_without_its_secret_a_function_is_reported_and_all_else_works(mesh: LambdaMesh):
    mesh.apply_and_wait(mesh.function("missing", credentials={"secret": "gone"}))
    assert mesh.web.call("missing").status == 503
    assert mesh.web.call("thumbnails").status == 201
    shown = mesh.koguma("get", "proxies").stdout
    assert 'config.credentials.secret: there is no Secret "gone" in mesh "default"' in shown
    mesh.apply_and_wait(credentials("gone", NEW_KEY, NEW_SECRET))
    until(lambda: mesh.web.call("missing").status == 201, "the Secret is there")


def test_a_route_for_connections_leads_none_to_a_function(mesh: LambdaMesh):
    n_refused = len(mesh.aws.refused)
    rule = {"default": {"backendRefs": [{**TO, "port": 80}]}}
    spec = {"to": [{"targetRef": build.service_ref("backend"), "rules": [rule]}]}
    mesh.apply_and_wait(build.document("MeshTCPRoute", "raw", spec=spec))
    with pytest.raises(ConnectionError):
        mesh.web.call("backend")
    assert len(mesh.aws.refused) == n_refused
    mesh.delete_and_wait("meshtcproutes", "raw")


def test_credentials_are_in_no_dump_and_in_no_log(mesh: LambdaMesh):
    shown = [
        mesh.request("GET", "/meshes/default/dataplanes/web/_config").text,
        mesh.web.admin("/config_dump?include_eds"),
        mesh.koguma("inspect", "dataplane", "web").stdout,
        mesh.koguma("get", "meshexternalservices", "-o", "yaml").stdout,
        mesh.koguma("describe", "meshexternalservice", "thumbnails").stdout,
        mesh.control_plane.output,
        mesh.web.output,
        *(file.read_text(errors="replace") for file in mesh.web.workdir.rglob("*") if file.is_file()),
    ]
    assert "aws_request_signing" in shown[0]
    assert "aws_request_signing" in shown[1]
    for text, secret in itertools.product(shown, (SECRET, NEW_SECRET, OWN_SECRET, TOKEN)):
        assert secret not in text
        assert base64.b64encode(secret.encode()).decode().rstrip("=")[:-1] not in text


def test_an_egress_signs_and_holds_the_credentials_alone(mesh: LambdaMesh):
    permission = {"allow": [{"spiffeID": {"type": "Prefix", "value": "spiffe://default/"}}]}
    mesh.apply(
        build.mesh(mtls=build.builtin_mtls(), routing={"zoneEgress": True}),
        build.policy("MeshTrafficPermission", "callers", rules=[{"default": permission}]),
    )
    egress = mesh.egress()
    until(lambda: mesh.web.call("thumbnails").status == 201, "a call goes through the egress")
    event = event_of(
        mesh.web.call("thumbnails", "PUT", "/x?y=1", body=b"z" * 2_000_000, Content_Type="text/plain")
    )
    assert (event["method"], event["raw_path"], len(event["body"])) == ("PUT", "/x?y=1", 2_000_000)
    clusters = "/config_dump?resource=dynamic_active_clusters"
    assert "aws_request_signing" in egress.admin(clusters)
    assert "aws_request_signing" not in mesh.web.admin(clusters)
