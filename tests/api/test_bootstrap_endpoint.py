"""The bootstrap endpoint: a proxy with the right token gets a bootstrap, and every refusal says why."""

import asyncio
import base64
import contextlib
import io
import json
import shutil
import ssl
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import yaml

from koguma.access import authorizer
from koguma.access.authorizer import Authorizer
from koguma.access.token_keys import TokenKeys
from koguma.api import bootstrap_server
from koguma.api.bootstrap_server import BootstrapServer
from koguma.api.server import HttpServer, tls_context
from koguma.application.context import Context, InstanceInfo
from koguma.application.live_engine import LiveEngine
from koguma.core import admission
from koguma.fleet.gate import PROXY, ProxyGate
from koguma.identity import certificate_facts, files, signing_keys, tokens
from koguma.identity.claims import DATAPLANE, DataplaneClaims
from koguma.kinds import KINDS
from koguma.model import forms
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kinds
from koguma.model.labels import INSTANCE, REGISTERED_BY
from koguma.store import open_store
from koguma.store.contract import Put, Transaction
from tests import build

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
SERVICE = "kuma.io/service"
ACCEPT = {"Accept": "application/json"}
INBOUND = build.inbound("web", 80, servicePort=8080)
TOKEN_TEXT = (
    "Dataplane Token is required. Generate token using 'kumactl generate dataplane-token > /path/file' and"
    " provide it via --dataplane-token-file=/path/file argument to Kuma DP"
)


def web(name="web-1", mesh="default", labels=None, **networking: Any) -> dict[str, Any]:
    fields = {"address": "10.0.0.1", "inbound": [INBOUND], **networking}
    return build.dataplane(name, mesh=mesh, labels=labels, **fields)


class Answer(msgspec.Struct, frozen=True):
    status: int
    text: str
    headers: dict[str, str]

    @property
    def bootstrap(self) -> Any:
        """What Envoy would read."""
        assert self.status == 200, self.text
        return json.loads(base64.b64decode(json.loads(self.text)["bootstrap"], validate=True))

    @property
    def source(self) -> Any:
        """Where Envoy would connect to."""
        (cluster,) = self.bootstrap["static_resources"]["clusters"]
        (endpoint,) = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
        address = endpoint["endpoint"]["address"]["socket_address"]
        return f"{address['address']}:{address['port_value']}"

    @property
    def trusted(self) -> Any:
        (cluster,) = self.bootstrap["static_resources"]["clusters"]
        return cluster["transport_socket"]["typed_config"]["common_tls_context"]["validation_context"][
            "trusted_ca"
        ]


@pytest.fixture(scope="session")
def signing_key() -> str:
    return signing_keys.generate().reveal()


class BootstrapEndpoint:
    """A bootstrap server over a store, on a port of its own."""

    def __init__(self, context: Context, keys: TokenKeys, credentials: files.ServerCredentials) -> None:
        self.context, self.keys, self.credentials = context, keys, credentials
        self.now = NOW
        self.port = 0

    def server(self, **changes: Any) -> BootstrapServer:
        given = {
            "xds_port": lambda: 5679,
            "ca": self.credentials.ca,
            "sans": certificate_facts.names(self.credentials.certificate),
        }
        gate = ProxyGate(self.context, self.keys, lambda: self.now)
        return BootstrapServer(self.context, gate, lambda: self.now, **{**given, **changes})

    @contextlib.asynccontextmanager
    async def open(self, **changes: Any) -> AsyncIterator["BootstrapEndpoint"]:
        """Listen, with some parameters of the server changed."""
        server = HttpServer(self.server(**changes).handle)
        await server.start()
        paths = self.credentials.certificate_path, self.credentials.key_path
        self.port = await server.listen("127.0.0.1", 0, tls_context(*map(str, paths)))
        try:
            yield self
        finally:
            await server.stop()

    async def write(self, *documents: Any) -> None:
        resources = [
            admission.admitted(
                forms.read_plain(each, self.context.kinds[each["type"]]), None, self.context.control_plane
            )
            for each in documents
        ]
        puts = tuple(Put(made.resource) for made in resources)
        await self.context.store.write(Transaction(puts, "test"))

    def token(self, mesh="default", *, lifetime=HOUR, **claims: Any) -> str:
        """A token for what is said, and for the service web where nothing is."""
        ring, said = self.keys.ring(DATAPLANE, mesh), claims or {"tags": {SERVICE: ("web",)}}
        return tokens.issue(ring, DataplaneClaims(mesh=mesh, **said), lifetime, self.now).reveal()

    def stored(self, name="web-1") -> Any:
        return self.context.state.named("Dataplane", "default", name)

    async def post(self, path: str, body: Any, method="POST", **headers: str) -> Answer:
        client_tls = ssl.create_default_context(cadata=self.credentials.ca)
        data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        url = f"https://127.0.0.1:{self.port}{path}"
        sent = {"Host": f"localhost:{self.port}", **headers}
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=client_tls)) as session,
            session.request(method, url, data=data, headers=sent) as response,
        ):
            return Answer(response.status, await response.text(), dict(response.headers))

    async def ask(self, **fields: Any) -> Answer:
        """A bootstrap for web-1, with some fields of the request changed; `...` leaves one out."""
        headers = {**ACCEPT, **fields.pop("headers", {})}
        body = {
            "mesh": "default",
            "name": "web-1",
            "proxyType": "dataplane",
            "dataplaneToken": self.token(),
            "version": {"kumaDp": {"version": "2.13.0"}, "envoy": {"version": "1.40.0"}},
            "caCert": "",
            "dynamicMetadata": None,
            "features": ["feature-readiness-unix-socket", "feature-that-nobody-knows"],
            "workdir": "/run/web-1",
            "resources": {"maxHeapSizeBytes": 0},
            **fields,
        }
        return await self.post("/bootstrap", {k: v for k, v in body.items() if v is not ...}, **headers)

    async def bring(self, document: Any, **fields: Any) -> Answer:
        """A bootstrap for a proxy that brings its Dataplane."""
        text = document if isinstance(document, str) else json.dumps(document)
        return await self.ask(dataplaneResource=text, **fields)


@pytest.fixture(scope="module")
def credentials(tmp_path_factory) -> files.ServerCredentials:
    names = ("cp.example.com", "*.wild.example.com")
    return files.server_credentials(tmp_path_factory.mktemp("data"), names, datetime.now(UTC))


@pytest.fixture
async def closed(credentials, signing_key):
    """An endpoint that does not listen yet."""
    kinds = Kinds(KINDS)
    store = await open_store("memory://")
    engine = LiveEngine(store, kinds, ControlPlaneInfo())
    context = Context(
        kinds=kinds,
        control_plane=ControlPlaneInfo(),
        store=store,
        access=Authorizer((*authorizer.builtin_roles(kinds),), authorizer.BUILTIN_BINDINGS),
        about=InstanceInfo("host", "host-1", lambda: "", "0", dict),
        signing_key=lambda: signing_key,
        database=engine.database,
        beside=engine.beside,
    )
    endpoint = BootstrapEndpoint(context, TokenKeys(lambda: store.state), credentials)
    secret = {"type": "Secret", "mesh": "default", "name": DATAPLANE.key_name(1, "default")}
    await endpoint.write({"type": "Mesh", "name": "default"}, {**secret, "data": signing_key})
    yield endpoint
    await store.close()


@pytest.fixture
async def endpoint(closed):
    """An endpoint that listens."""
    async with closed.open():
        yield closed


async def test_a_proxy_that_brings_its_dataplane_gets_a_bootstrap(endpoint):
    document = web(admin={"port": 9902})
    answer = await endpoint.bring(document, dnsPort=15053, ipv6Enabled=True)
    node = answer.bootstrap["node"]
    assert (node["id"], node["cluster"]) == ("default.web-1", "web")
    assert json.loads(node["metadata"].pop("dataplane.resource")) == document
    assert node["metadata"] == {
        "dataplane.proxyType": "dataplane",
        "dataplane.admin.port": "9902",
        "dataplane.admin.address": "127.0.0.1",
        "dataplane.dns.port": "15053",
        "workdir": "/run/web-1",
        "version": {"kumaDp": {"version": "2.13.0"}, "envoy": {"version": "1.40.0"}},
        "features": ["feature-readiness-unix-socket", "feature-that-nobody-knows"],
        "ipv6Enabled": True,
    }
    assert json.loads(answer.text)["kumaSidecarConfiguration"] == {
        "networking": {"address": "10.0.0.1"},
        "metrics": {"aggregate": []},
    }
    assert endpoint.stored() is None, "it is registered when it connects"


async def test_a_proxy_may_name_other_control_planes(endpoint):
    others = [{"host": "10.0.0.9"}, {"host": "CP-2.example.com", "xdsPort": 6679}]
    answer = await endpoint.bring(web(), controlPlanes=others)
    (cluster,) = answer.bootstrap["static_resources"]["clusters"]
    addresses = [
        tuple(each["endpoint"]["address"]["socket_address"].values())
        for each in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    ]
    assert addresses == [("localhost", 5679), ("10.0.0.9", 5679), ("cp-2.example.com", 6679)]
    assert "outlier_detection" in cluster
    (alone,) = (await endpoint.bring(web())).bootstrap["static_resources"]["clusters"]
    assert "outlier_detection" not in alone, "Kuma's agent names one, and gets what it always got"
    own = [*("feature-access-log-pipe", "feature-readiness-unix-socket")]
    (named,) = (await endpoint.bring(web(), features=own)).bootstrap["static_resources"]["clusters"]
    assert "outlier_detection" in named, "a name may have several addresses"


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ([{"host": "no host"}], "controlPlanes[0].host: must be an IP address or a DNS name"),
        ([{"host": "a", "xdsPort": 70000}], "controlPlanes[0].xdsPort: must be in range [0, 65535]"),
        ([{"host": f"cp-{n}"} for n in range(17)], "controlPlanes: must be at most 16"),
        ([{"xdsPort": 1}], "controlPlanes[0].host"),
        ("10.0.0.9", "controlPlanes"),
    ],
)
async def test_other_control_planes_must_be_addresses(endpoint, others, message):
    answer = await endpoint.bring(web(), controlPlanes=others)
    assert answer.status in (400, 422)
    assert message in answer.text


async def test_an_agent_learns_the_port_of_xds(endpoint):
    answer = await endpoint.post("/ports", b"", method="GET")
    assert (answer.status, json.loads(answer.text)) == (200, {"xds": 5679})
    assert (await endpoint.post("/ports", b"")).status == 404


@pytest.mark.parametrize("directories", [["/srv/logs", "/var/log/koguma"], []])
async def test_the_node_says_where_envoy_may_write_files(endpoint, directories):
    answer = await endpoint.bring(web(), accessLogDirectories=directories)
    assert answer.bootstrap["node"]["metadata"]["accessLogDirectories"] == directories


async def test_a_proxy_is_told_which_of_its_outbounds_lead_nowhere(endpoint):
    await endpoint.write(web("backend-1", inbound=[{"port": 80, "tags": {SERVICE: "backend"}}]))
    outbound = [
        {"port": port, "tags": {SERVICE: name}} for port, name in ((9001, "backend"), (9002, "bakend"))
    ]
    answer = await endpoint.bring(web(outbound=outbound))
    (warning,) = json.loads(answer.text)["warnings"]
    assert warning.startswith('the outbound on port 9002 of Dataplane "web-1"')
    assert warning.endswith('there is no MeshService "bakend"; did you mean "backend"?')
    assert "warnings" not in json.loads((await endpoint.bring(web(outbound=outbound[:1]))).text)


async def test_a_proxy_whose_dataplane_is_stored_brings_none(endpoint):
    await endpoint.write(web(gateway={"tags": {SERVICE: "edge"}}, inbound=[]))
    answer = await endpoint.ask(dataplaneToken=endpoint.token(name="web-1"))
    assert answer.bootstrap["node"]["cluster"] == "edge"
    assert "dataplane.resource" not in answer.bootstrap["node"]["metadata"]


EDGE = build.dataplane(
    "edge-1",
    mesh="default",
    address="10.0.0.1",
    inbound=[],
    gateway={"type": "BUILTIN", "tags": {SERVICE: "edge"}},
)
GATEWAY_LAYER = {
    "name": "gateway.listeners",
    "rtds_layer": {
        "name": "gateway.listeners",
        "rtds_config": {"ads": {}, "resource_api_version": "V3"},
    },
}


async def bring_edge(endpoint, **fields):
    """A bootstrap for a built-in gateway."""
    token = endpoint.token(tags={SERVICE: ("edge",)})
    return await endpoint.bring(EDGE, **{"name": "edge-1", "dataplaneToken": token, **fields})


@pytest.mark.parametrize("features", [["feature-readiness-unix-socket"], ["feature-access-log-pipe"]])
async def test_a_builtin_gateway_subscribes_to_the_limits_of_its_listeners(endpoint, features):
    answer = await bring_edge(endpoint, features=features)
    assert answer.bootstrap["layered_runtime"]["layers"][1:] == [GATEWAY_LAYER]
    assert answer.bootstrap["node"]["cluster"] == "edge"
    delegated = web(gateway={"tags": {SERVICE: "web"}}, inbound=[])
    for other in (delegated, web()):
        layers = (await endpoint.bring(other, features=features)).bootstrap["layered_runtime"]["layers"]
        assert len(layers) == 1


async def test_the_token_of_a_gateway_names_its_service(endpoint):
    assert (await bring_edge(endpoint)).status == 200
    answer = await bring_edge(endpoint, dataplaneToken=endpoint.token(tags={SERVICE: ("web",)}))
    assert (answer.status, '"edge" which is not allowed with this token' in answer.text) == (403, True)
    answer = await bring_edge(endpoint, dataplaneToken=endpoint.token(name="edge-1"))
    assert answer.status == 403
    assert "--name edge-1 --service edge" in answer.text


async def test_a_gateway_is_told_that_no_mesh_gateway_selects_it(endpoint):
    (warning,) = json.loads((await bring_edge(endpoint)).text)["warnings"]
    assert warning == (
        'no MeshGateway selects the tags kuma.io/service=edge of Dataplane "edge-1" (mesh default zone'
        " default): it listens on no port until one does"
    )
    await endpoint.write(
        {
            "type": "MeshGateway",
            "mesh": "default",
            "name": "edge",
            "selectors": [{"match": {SERVICE: "edge"}}],
            "conf": {"listeners": [{"port": 8080, "protocol": "HTTP"}]},
        }
    )
    assert "warnings" not in json.loads((await bring_edge(endpoint)).text)


OUR_AGENT = ["feature-access-log-pipe"]


async def test_kumas_agent_finds_envoys_admin_on_a_port(endpoint):
    for networking, port in (({}, 9901), ({"admin": {"port": 9902}}, 9902)):
        made = (await endpoint.bring(web(**networking))).bootstrap
        address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
        assert made["admin"]["address"] == address
        assert made["node"]["metadata"]["dataplane.admin.port"] == str(port)
        assert made["hds_config"]["grpc_services"] == made["dynamic_resources"]["ads_config"]["grpc_services"]


async def test_our_agent_has_envoys_admin_on_a_socket(endpoint):
    for networking, port in (({}, None), ({"admin": {"port": 9902}}, "9902")):
        made = (await endpoint.bring(web(**networking), features=OUR_AGENT)).bootstrap
        assert made["admin"]["address"] == {"pipe": {"path": "/run/web-1/envoy-admin.sock", "mode": 0o600}}
        assert made["node"]["metadata"].get("dataplane.admin.port") == port


@pytest.mark.parametrize(("probe", "reports"), [({}, True), ({"tcp": {}}, True), (None, False)])
async def test_an_envoy_reports_health_where_there_is_something_to_check(endpoint, probe, reports):
    inbound = INBOUND if probe is None else {**INBOUND, "serviceProbe": probe}
    answer = await endpoint.bring(web(inbound=[inbound]), features=OUR_AGENT)
    assert ("hds_config" in answer.bootstrap) == reports


REDIRECT = {
    "ipFamilyMode": "ipv4",
    "redirect": {
        "inbound": {"enabled": True, "port": 15006},
        "outbound": {"enabled": True, "port": 15001},
        "dns": {"enabled": False, "port": 15053},
    },
}


async def test_what_kumas_agent_says_of_itself_goes_with_envoy(endpoint):
    files_ = {"certPath": "/certs/cert.pem", "keyPath": "/certs/key.pem"}
    answer = await endpoint.bring(
        web(),
        dataplaneConfig=REDIRECT,
        metricsResources=files_,
        readinessPort=9902,
        systemCaPath="/etc/ssl/cas.pem",
        dynamicMetadata={"version.dependencies.coredns": "1.14"},
    )
    said = answer.bootstrap["node"]["metadata"]
    assert said["transparentProxy"] == REDIRECT
    assert (said["metricsCertPath"], said["metricsKeyPath"]) == ("/certs/cert.pem", "/certs/key.pem")
    assert said["dataplane.readinessReporter.port"] == "9902"
    assert said["systemCaPath"] == "/etc/ssl/cas.pem"
    assert said["dynamicMetadata"] == {"version.dependencies.coredns": "1.14"}


async def test_a_proxy_whose_agent_redirects_everything_needs_no_outbounds(endpoint):
    outbound = [{"port": 9000, "tags": {SERVICE: "shop"}}]
    answer = await endpoint.bring(web(outbound=outbound), dataplaneConfig=REDIRECT)
    text = "outbound: should be empty since dataplane is in Transparent Proxying mode"
    assert (answer.status, answer.text) == (422, text)


async def test_the_token_goes_with_the_bootstrap_and_nowhere_else(endpoint):
    token = endpoint.token()
    answer = await endpoint.bring(web(), dataplaneToken=token)
    (service,) = answer.bootstrap["dynamic_resources"]["ads_config"]["grpc_services"]
    assert service["initial_metadata"] == [{"key": "authorization", "value": token}]
    assert token not in json.dumps(answer.bootstrap["node"])
    assert answer.headers["Cache-Control"] == "no-store"


async def test_an_agent_that_keeps_the_token_in_a_file_gets_a_bootstrap_without_it(endpoint):
    token = endpoint.token()
    answer = await endpoint.bring(web(), dataplaneToken=token, features=["feature-token-file"])
    assert token not in json.dumps(answer.bootstrap)
    assert "initial_metadata" not in json.dumps(answer.bootstrap["dynamic_resources"])
    (cluster,) = answer.bootstrap["static_resources"]["clusters"]
    (options,) = cluster["typed_extension_protocol_options"].values()
    injector, _codec = options["http_filters"]
    credential = injector["typed_config"]["credential"]["typed_config"]["credential"]
    assert credential["sds_config"]["path_config_source"] == {"path": "/run/web-1/dataplane-token.json"}


async def test_the_log_names_the_proxy_and_no_token(endpoint, logged):
    token = endpoint.token()
    await endpoint.bring(web(), dataplaneToken=token)
    await endpoint.bring(web(address=""), dataplaneToken=token)
    await endpoint.bring(web(), dataplaneToken=token[:-8] + "AAAAAAAA")
    answered = [line for line in logged if line["event"] == "proxy answered"]
    assert [(line["user"], line["status"]) for line in answered] == [
        ("proxy:default.web-1", 200),
        ("proxy:default.web-1", 422),
        ("mesh-system:anonymous", 401),
    ]
    assert token[:-8] not in str(logged)


@pytest.mark.slow
async def test_envoy_reads_what_it_is_given(endpoint, tmp_path):
    (tmp_path / "bootstrap.json").write_text(json.dumps((await endpoint.bring(web())).bootstrap))
    envoy = shutil.which("envoy", path=str(Path(sys.executable).parent)) or "envoy"
    process = await asyncio.create_subprocess_exec(
        *(envoy, "--mode", "validate", "--config-path", str(tmp_path / "bootstrap.json")),
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    assert process.returncode == 0, said.decode()


@pytest.mark.parametrize("word", ["Bearer ", "bearer ", ""])
async def test_the_token_may_stand_in_the_header(endpoint, word):
    header = {"Authorization": f"{word}{endpoint.token()}"}
    assert (await endpoint.bring(web(), dataplaneToken=..., headers=header)).status == 200


async def test_a_bare_bootstrap_is_for_those_who_do_not_ask_for_json(endpoint):
    answer = await endpoint.bring(web(), headers={"Accept": "*/*"})
    assert answer.headers["Content-Type"].startswith("text/x-yaml")
    assert yaml.safe_load(answer.text)["node"]["id"] == "default.web-1"


async def test_a_dataplane_in_yaml_becomes_json(endpoint):
    text = yaml.safe_dump({name: part for name, part in web().items() if name != "mesh"})
    answer = await endpoint.bring(text)
    written = json.loads(answer.bootstrap["node"]["metadata"]["dataplane.resource"])
    assert written == web()


@pytest.mark.parametrize(
    ("variant", "word"),
    [(None, "DELTA_GRPC"), ("DEFAULT", "DELTA_GRPC"), ("DELTA_GRPC", "DELTA_GRPC"), ("GRPC", "GRPC")],
)
async def test_a_dataplane_chooses_how_its_configuration_comes(endpoint, variant, word):
    document = {**web(), **({"envoy": {"xdsTransportProtocolVariant": variant}} if variant else {})}
    answer = await endpoint.bring(document)
    assert answer.bootstrap["dynamic_resources"]["ads_config"]["api_type"] == word


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("localhost:5678", "localhost:5679"),
        ("LOCALHOST", "localhost:5679"),
        ("127.0.0.1:5678", "127.0.0.1:5679"),
        ("[::1]:5678", "::1:5679"),
        ("[0:0:0::1]:5678", "::1:5679"),
        ("cp.example.com", "cp.example.com:5679"),
        ("cp.example.com.:5678", "cp.example.com:5679"),
        ("a.wild.example.com", "a.wild.example.com:5679"),
    ],
)
async def test_envoy_goes_where_the_proxy_came_to(endpoint, host, source):
    answer = await endpoint.bring(web(), headers={"Host": host})
    assert answer.source == source


@pytest.mark.parametrize(
    "host", ["10.0.0.9:5678", "other.example.com", "a.b.wild.example.com", "[::1", "x" * 900]
)
async def test_a_host_that_the_certificate_is_not_for_is_refused(endpoint, host):
    answer = await endpoint.bring(web(), headers={"Host": host})
    assert answer.status == 400
    assert answer.text.startswith("A data plane proxy is trying to connect to the control plane using ")
    sans = certificate_facts.names(endpoint.credentials.certificate)
    listed = " ".join(f'"{name}"' for name in sans)
    assert f"but the certificate in the control plane has the following SANs [{listed}]." in answer.text
    assert len(answer.text) < 2000


async def test_a_setting_may_say_where_xds_is(closed):
    async with closed.open(xds_host="Xds.Example.com"):
        answer = await closed.bring(web(), headers={"Host": "whatever"})
        assert answer.source == "xds.example.com:5679"


async def test_envoy_trusts_our_ca_or_the_one_that_the_proxy_has(endpoint, signing_key):
    assert (await endpoint.bring(web())).trusted == {"inline_string": endpoint.credentials.ca}
    other = files.certificates.make_authority(files.certificates.make_key(), NOW).certificate
    assert (await endpoint.bring(web(), caCert=other)).trusted == {"inline_string": other}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("no certificate", "caCert is no certificate; give X.509 in PEM form"),
        (
            None,
            "A data plane proxy is trying to verify the control plane using the certificate which is not a",
        ),
    ],
)
async def test_what_is_no_ca_vouches_for_nobody(endpoint, given, text):
    answer = await endpoint.bring(web(), caCert=given or endpoint.credentials.certificate)
    assert answer.status == 400
    assert answer.text.startswith(text)


async def test_without_a_ca_of_ours_the_machines_own_must_do(closed):
    async with closed.open(ca=""):
        answer = await closed.bring(web(), systemCaPath="/etc/ssl/cas.pem")
        assert answer.trusted == {"filename": "/etc/ssl/cas.pem"}
        refused = await closed.bring(web())
        assert (refused.status, "not a certificate authority" in refused.text) == (400, True)


# A header that says nothing, and the claims {"Name": "joe", "Groups": []}.
NOT_SIGNED = "unknown token alg. Allowed alg is RS256"
A_USERS = "the token says that it is a user token"
USERS_TOKEN = "e30.eyJOYW1lIjoiam9lIiwiR3JvdXBzIjpbXX0.c2ln"
ISSUE = "`koguma token dataplane --mesh default --name NAME --service SERVICE` issues"


async def test_a_token_is_asked_for(endpoint):
    for nothing in (..., "", None, "  "):
        answer = await endpoint.bring(web(), dataplaneToken=nothing)
        assert (answer.status, answer.text) == (422, TOKEN_TEXT)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (
            lambda token: token[:-8] + "AAAAAAAA",
            f"could not parse token: signature is invalid; {ISSUE} a new one",
        ),
        (
            lambda _: USERS_TOKEN,
            f"{NOT_SIGNED}; {A_USERS}, and a dataplane token is needed here: {ISSUE} one",
        ),
        (
            lambda _: "nonsense",
            f"could not parse token: it is not a signed JWT; {ISSUE} a dataplane token",
        ),
        (
            lambda _: "x" * 9000,
            f"could not parse token: it is longer than 8192 bytes; {ISSUE} a dataplane token",
        ),
    ],
)
async def test_a_bad_token_is_refused_before_all_else(endpoint, changed, text):
    answer = await endpoint.bring("{", dataplaneToken=changed(endpoint.token()), workdir="", name="")
    assert (answer.status, answer.text) == (401, f"authentication failed: {text}")


async def test_an_old_token_is_refused(endpoint):
    token = endpoint.token(lifetime=HOUR)
    endpoint.now = NOW + 2 * HOUR
    answer = await endpoint.bring(web(), dataplaneToken=token)
    text = f"authentication failed: token is expired; {ISSUE} a new one"
    assert (answer.status, answer.text) == (401, text)


@pytest.mark.parametrize(
    ("claims", "text"),
    [
        ({"name": "web-2"}, "proxy name from requestor: web-1 is different than in token: web-2"),
        ({"type": "ingress"}, "proxy type from requestor: dataplane is different than in token: ingress"),
        ({"tags": {"team": ("a",)}}, 'dataplane has no tag "team" required by the token'),
        (
            {"tags": {SERVICE: ("shop",)}},
            (
                f'dataplane contains tag "{SERVICE}" with value "web" which is not allowed with this token.'
                ' Allowed values in token are ["shop"]'
            ),
        ),
        ({"workload": "web"}, "dataplane has no workload label required by the token"),
    ],
)
async def test_a_token_that_does_not_fit_is_refused(endpoint, claims, text):
    for stored in (False, True):
        if stored:
            await endpoint.write(web())
        token = endpoint.token(**claims)
        answer = await (
            endpoint.ask(dataplaneToken=token) if stored else endpoint.bring(web(), dataplaneToken=token)
        )
        assert (answer.status, answer.text) == (403, text)


@pytest.mark.parametrize(
    "claims",
    [
        {"name": "web-1", "workload": "web"},
        {"tags": {SERVICE: ("web", "shop")}},
        {"tags": {SERVICE: ("web",), "kuma.io/zone": ("default",)}},  # a label that every Dataplane gets
        {"workload": "web"},
    ],
)
async def test_a_token_that_fits_is_taken(endpoint, claims):
    document = web(labels={"kuma.io/workload": "web"})
    assert (await endpoint.bring(document, dataplaneToken=endpoint.token(**claims))).status == 200


@pytest.mark.parametrize("claims", [{"name": "web-1"}, {"tags": {"kuma.io/zone": ("default",)}}])
async def test_a_token_without_a_service_is_for_what_an_operator_wrote(endpoint, claims):
    token = endpoint.token(**claims)
    answer = await endpoint.bring(web(), dataplaneToken=token)
    assert answer.status == 403
    assert answer.text.endswith(
        "koguma token dataplane --mesh default --name web-1 --service web --valid-for 720h"
    )
    await endpoint.write(web())
    assert (await endpoint.ask(dataplaneToken=token)).status == 200
    assert (await endpoint.bring(web(), dataplaneToken=token)).status == 200


async def test_a_dataplane_that_is_not_there_yet_is_nothing_said(endpoint):
    answer = await endpoint.ask()
    assert (answer.status, answer.text) == (404, "")


async def test_a_token_for_another_name_does_not_tell_who_is_there(endpoint):
    answer = await endpoint.ask(dataplaneToken=endpoint.token(name="shop-1"))
    assert answer.status == 403


@pytest.mark.parametrize("mesh", ["nope", "", "Not/a mesh"])
async def test_a_mesh_that_is_not_there_is_said_so(endpoint, mesh):
    answer = await endpoint.ask(mesh=mesh)
    assert (answer.status, answer.text) == (422, f'mesh: mesh "{mesh}" does not exist')
    assert all(key[1] == "default" for key in endpoint.keys._rings), "no ring is kept for what does not exist"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "line 1, column 1: Expecting value"),
        (b"{", "line 1, column 2: Expecting property name enclosed in double quotes"),
        (b'{"mesh": 1, "features": "x"}', 'mesh: in body must be of type string: "integer"\nfeatures: '),
        (b'{"mesh": "a", "mesh": "b"}', 'line 1, column 15: key "mesh" is given twice'),
        (b"[]", "the body must be a JSON object, not array"),
        (b"[" * 30_000, "line 1, column 1: nested deeper than 64 levels"),
        (b"\xff", "line 1, column 1: byte 0 is not valid UTF-8"),
    ],
)
async def test_what_cannot_be_read_is_said_with_its_place(endpoint, body, text):
    answer = await endpoint.post("/bootstrap", body, **ACCEPT)
    assert answer.status == 400
    assert answer.text.startswith(text)
    assert answer.headers["Content-Type"].startswith("text/plain")


async def test_a_body_too_large_is_not_read(endpoint):
    answer = await endpoint.post("/bootstrap", b" " * (bootstrap_server.BODY_BYTES_MAX + 1))
    assert (answer.status, answer.text) == (413, "the body is larger than 262144 bytes")


async def test_a_body_that_does_not_come_is_not_waited_for(endpoint, monkeypatch):
    monkeypatch.setattr(bootstrap_server, "BODY_SECONDS_MAX", 0.05)
    context = ssl.create_default_context(cadata=endpoint.credentials.ca)
    reader, writer = await asyncio.open_connection("localhost", endpoint.port, ssl=context)
    writer.write(b"POST /bootstrap HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{")
    async with asyncio.timeout(60):
        assert b" 408 " in await reader.readline()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"name": ""}, "name: cannot be empty"),
        ({"workdir": ""}, "workdir: must be an absolute path: Envoy keeps its sockets there"),
        ({"workdir": "run/web-1"}, "workdir: must be an absolute path: Envoy keeps its sockets there"),
        (
            {"workdir": "/" + "a" * 78},
            "workdir: is longer than 78 bytes, so that the path of a socket in it would be too long",
        ),
        ({"dnsPort": 65536}, "dnsPort: must be in range [0, 65535]"),
        ({"readinessPort": -1}, "readinessPort: must be in range [0, 65535]"),
        (
            {"proxyType": "router"},
            'proxyType: "router" is not served; there are dataplane, egress, ingress',
        ),
        (
            {"dnsPort": -1, "workdir": ""},
            (
                "dnsPort: must be in range [0, 65535]\n"
                "workdir: must be an absolute path: Envoy keeps its sockets there"
            ),
        ),
    ],
)
async def test_what_is_wrong_with_a_request_is_named(endpoint, fields, text):
    answer = await endpoint.bring(web(), **fields)
    assert (answer.status, answer.text) == (422, text)


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ("{", "dataplaneResource: line 2, column 1: "),
        ("", None),
        ("a: 1\n---\nb: 2", "dataplaneResource: must be one Dataplane"),
        ("[]", "dataplaneResource: must be one Dataplane"),
        (web("web-2"), 'name: is "web-2", and the proxy asked as "web-1"'),
        (web(mesh="m"), 'mesh: is "m", and the proxy asked as "default"'),
        ({"type": "Mesh", "name": "x"}, 'type: is "Mesh", and the proxy asked as "Dataplane"\nname: is "x"'),
        (web(address=""), "networking.address: address can't be empty"),
        (
            web(inbound=[{**INBOUND, "port": 0}, {"port": 1, "tags": {"a": "b"}}], outbound=[{}]),
            (
                "networking.inbound[0].port: port must be in the range [1, 65535]\n"
                'networking.inbound[1].tags["kuma.io/service"]: tag has to exist\n'
                "networking.outbound[0].port: "
            ),
        ),
        (
            {**web(), "networkin": {}},
            'networkin: unknown field "networkin"; did you mean "networking"?',
        ),
        (
            web(labels={"kuma.io/zone": "west"}),
            'labels["kuma.io/zone"]: kuma.io/zone label should have',
        ),
        (
            web(
                transparentProxying={"redirectPortInbound": 15006, "redirectPortOutbound": 15001},
                outbound=[{"port": 9000, "tags": {SERVICE: "shop"}}],
            ),
            "outbound: should be empty since dataplane is in Transparent Proxying mode",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
async def test_a_bad_dataplane_is_refused_with_the_places(endpoint, document, text):
    answer = await endpoint.bring(document)
    assert answer.status == (404 if text is None else 422)
    assert answer.text.startswith(text or "")
    assert endpoint.stored() is None


async def test_other_paths_and_methods_lead_nowhere(endpoint):
    there = await endpoint.post("/meshes", {})
    assert (there.status, there.text) == (404, "there is nothing at /meshes; proxies POST to /bootstrap")
    wrong = await endpoint.post("/bootstrap", b"", method="GET")
    assert (wrong.status, wrong.headers["Allow"]) == (405, "POST")


@pytest.mark.expected_errors("what only the log may hear")
async def test_a_mistake_of_ours_is_one_bad_answer(closed):
    def broken() -> int:
        raise ZeroDivisionError("what only the log may hear")

    async with closed.open(xds_port=broken):
        answer = await closed.bring(web())
        assert answer.status == 500
        assert answer.text.startswith("Internal Server Error")
        assert answer.headers["Koguma-Request-Id"] in answer.text
        assert "hear" not in answer.text
        assert (await closed.ask(dataplaneToken=...)).status == 422, "the server goes on"


REGISTERED = {REGISTERED_BY: PROXY}


async def leave(endpoint, token, **fields):
    header = {"Authorization": f"Bearer {token}"} if token else {}
    return await endpoint.post("/deregister", {"mesh": "default", "name": "web-1", **fields}, **header)


async def test_a_proxy_takes_its_dataplane_along(endpoint):
    await endpoint.write(web(labels=REGISTERED), web("web-2", labels=REGISTERED))
    key = endpoint.stored().key
    answer = await leave(endpoint, endpoint.token(name="web-1"))
    assert (answer.status, answer.text) == (204, "")
    assert endpoint.stored() is None
    assert endpoint.stored("web-2") is not None
    assert (await leave(endpoint, endpoint.token(name="web-1"))).status == 204, "it is gone already"
    (last, *_) = await endpoint.context.store.history(key)
    assert (last.author, last.reason) == ("proxy:default.web-1", "the proxy has stopped")


async def test_a_later_run_of_a_proxy_is_not_taken_along_by_an_earlier_one(endpoint):
    await endpoint.write(web(labels={**REGISTERED, INSTANCE: "later"}))
    assert (await leave(endpoint, endpoint.token(), instance="earlier")).status == 204
    assert endpoint.stored() is not None
    assert (await leave(endpoint, endpoint.token(), instance="later")).status == 204
    assert endpoint.stored() is None


async def test_a_dataplane_that_somebody_wrote_stays(endpoint):
    await endpoint.write(web())
    assert (await leave(endpoint, endpoint.token())).status == 204
    assert endpoint.stored() is not None


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        ({"name": "web-2"}, 403),
        ({"tags": {SERVICE: ("shop",)}}, 403),
        ({"workload": "shop"}, 403),
        ({"tags": {SERVICE: ("web",)}}, 204),
    ],
)
async def test_a_proxy_removes_no_other(endpoint, claims, status):
    await endpoint.write(web(labels=REGISTERED))
    answer = await leave(endpoint, endpoint.token(**claims))
    assert answer.status == status
    assert (endpoint.stored() is None) == (status == 204)


async def test_nobody_leaves_for_another_without_a_token(endpoint):
    await endpoint.write(web(labels=REGISTERED))
    for token in ("", "nonsense", endpoint.token()[:-8] + "AAAAAAAA"):
        assert (await leave(endpoint, token)).status == 401
    assert endpoint.stored() is not None


async def test_leaving_a_mesh_that_has_gone_is_no_trouble(endpoint):
    assert (await leave(endpoint, endpoint.token(), mesh="gone")).status == 204


async def test_a_dataplane_that_is_written_meanwhile_goes_all_the_same(endpoint):
    await endpoint.write(web(labels=REGISTERED))
    write, times = endpoint.context.store.write, []

    async def late(transaction):
        if not times:
            times.append(1)
            await write(Transaction((Put(changed),), "somebody"))
        return await write(transaction)

    changed = msgspec.structs.replace(endpoint.stored(), labels={**endpoint.stored().labels, "a": "b"})
    endpoint.context.store.write = late
    assert (await leave(endpoint, endpoint.token())).status == 204
    assert endpoint.stored() is None
