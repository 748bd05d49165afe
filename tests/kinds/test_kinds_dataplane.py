"""What a Dataplane may say."""

import pytest
from kinds_check import Expected, violations

PORT = "port must be in the range [1, 65535]"
IP = "address has to be valid IP address"
KIND = "invalid value. Available values are: MeshExternalService,MeshMultiZoneService,MeshService"
SAME = "serviceAddress and servicePort has to differ from address and port"
TAG_NAME = "tag name must consist of alphanumeric characters, dots, dashes, slashes and underscores"
TAG_VALUE = "tag value must consist of alphanumeric characters, dots, dashes and underscores"
RFC1123 = (
    "invalid characters. A lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters,"
    " '-' or '.', and must start and end with an alphanumeric character"
)
PROTOCOL = 'tag "kuma.io/protocol" has an invalid value "amqp". Allowed values: grpc, http, http2, kafka, tcp'
IN = "networking.inbound[0]"
OUT = "networking.outbound[0]"
REF = "networking.transparentProxing.reachableBackends.refs[0]"
WEB = "tags: {kuma.io/service: web}"
LISTENER = "type: ZoneIngress, address: 10.0.0.1, port: 10001"


def networking(rest: str = "", *, more: str = "") -> str:
    inner = f", {rest}" if rest else ""
    outer = f", {more}" if more else ""
    return f"{{networking: {{address: 10.0.0.1{inner}}}{outer}}}"


REFUSED: list[tuple[str, Expected]] = [
    ("{}", [("networking", "must be defined")]),
    ("{networking: {}}", [("networking.address", "address can't be empty")]),
    ("{networking: {address: 0.0.0.0}}", [("networking.address", "must not be 0.0.0.0 or ::")]),
    ("{networking: {address: '::'}}", [("networking.address", "must not be 0.0.0.0 or ::")]),
    (
        "{networking: {address: '..>_<..'}}",
        [("networking.address", "address has to be valid IP address or domain name")],
    ),
    (
        "{networking: {address: 127.0.0.1, admin: {port: 80}, inbound: [{port: 80}]}}",
        [("networking.admin.port", "must differ from inbound")],
    ),
    (
        networking("admin: {port: 80}, inbound: [{port: 8080, servicePort: 80, serviceAddress: 127.0.0.1}]"),
        [("networking.admin.port", "must differ from inbound")],
    ),
    (
        networking("admin: {port: 80}, outbound: [{port: 80, tags: {kuma.io/service: db}}]"),
        [("networking.admin.port", "must differ from outbound")],
    ),
    (
        networking("gateway: {}, inbound: [{port: 80}]"),
        [("networking.inbound", "inbound cannot be defined for delegated gateways")],
    ),
    (
        networking(f"gateway: {{}}, listeners: [{{{LISTENER}}}]"),
        [("networking.listeners", "listeners cannot be defined for delegated gateways")],
    ),
    (
        networking(
            f"gateway: {{type: BUILTIN, {WEB}}}, inbound: [{{port: 80}}], outbound: [{{port: 81, {WEB}}}]",
            more="probes: {port: 0}",
        ),
        [
            ("networking.inbound", "inbound cannot be defined for builtin gateways"),
            ("networking.outbound", "outbound cannot be defined for builtin gateways"),
            ("networking.probes", "probes cannot be defined for builtin gateways"),
        ],
    ),
    (
        networking("gateway: {type: BUILTIN}"),
        [("networking.gateway.tags", 'mandatory tag "kuma.io/service" is missing')],
    ),
    (
        networking("gateway: {tags: {kuma.io/protocol: http}}"),
        [
            ("networking.gateway.tags", 'mandatory tag "kuma.io/service" is missing'),
            (
                'networking.gateway.tags["kuma.io/protocol"]',
                'other values than tcp are not allowed, provided value "http"',
            ),
        ],
    ),
    (networking("inbound: [{}]"), [(f"{IN}.port", PORT)]),
    (
        networking("inbound: [{port: 65536, servicePort: 70000}]"),
        [(f"{IN}.port", PORT), (f"{IN}.servicePort", PORT)],
    ),
    (
        networking("inbound: [{port: 80, serviceAddress: localhost, address: localhost}]"),
        [
            (f"{IN}.serviceAddress", "serviceAddress has to be valid IP address"),
            (f"{IN}.serviceAddress", SAME),
            (f"{IN}.address", IP),
        ],
    ),
    (networking("inbound: [{port: 80, serviceAddress: 10.0.0.1}]"), [(f"{IN}.serviceAddress", SAME)]),
    (
        networking("inbound: [{port: 80, servicePort: 80, serviceAddress: 10.0.0.1}]"),
        [(f"{IN}.serviceAddress", SAME)],
    ),
    (
        networking("inbound: [{port: 80, tags: {kuma.io/protocol: amqp, 'a b': 'c d', e: ''}}]"),
        [
            (f'{IN}.tags["a b"]', TAG_NAME),
            (f'{IN}.tags["a b"]', TAG_VALUE),
            (f'{IN}.tags["e"]', "tag value must be non-empty"),
            (
                f'{IN}.tags["kuma.io/protocol"]',
                PROTOCOL,
            ),
            (f'{IN}.tags["kuma.io/service"]', "tag has to exist"),
        ],
    ),
    (
        networking("inbound: [{port: 80, tags: {'': x, kuma.io/service: web}}]"),
        [(f"{IN}.tags", "tag name must be non-empty")],
    ),
    (
        networking(
            "inbound: [{port: 80, serviceProbe:"
            " {interval: 0s, timeout: -1s, unhealthyThreshold: 0, healthyThreshold: 0}}]"
        ),
        [
            (f"{IN}.serviceProbe.interval", "must have a positive value"),
            (f"{IN}.serviceProbe.timeout", "must have a positive value"),
            (f"{IN}.serviceProbe.unhealthyThreshold", "must have a positive value"),
            (f"{IN}.serviceProbe.healthyThreshold", "must have a positive value"),
        ],
    ),
    (
        networking("outbound: [{address: localhost}]"),
        [
            (f"{OUT}.port", PORT),
            (f"{OUT}.address", IP),
            (f"{OUT}.tags", 'mandatory tag "kuma.io/service" is missing'),
        ],
    ),
    (
        networking("outbound: [{port: 80, backendRef: {kind: MeshGateway}}]"),
        [
            (f"{OUT}.backendRef.kind", KIND),
            (f"{OUT}.backendRef", "either 'name' or 'labels' should be specified"),
            (f"{OUT}.backendRef.port", PORT),
        ],
    ),
    (
        networking(f"outbound: [{{port: 80, {WEB}, backendRef: {{kind: MeshService, name: db, port: 1}}}}]"),
        [(f"{OUT}.backendRef", "both backendRef and tags/service cannot be defined")],
    ),
    (
        networking("transparentProxying: {reachableBackends: {refs: [{kind: Mesh, name: 'A$'}]}}"),
        [(f"{REF}.kind", KIND), (f"{REF}.name", RFC1123)],
    ),
    (
        networking("transparentProxying: {reachableBackends: {refs: [{kind: MeshService}]}}"),
        [(f"{REF}.name", "name or labels are required")],
    ),
    (
        networking(
            "transparentProxying: {reachableBackends: {refs: [{kind: MeshService, namespace: apps}]}}"
        ),
        [(f"{REF}.name", "name is required, when namespace is defined")],
    ),
    (
        networking(
            "transparentProxying: {reachableBackends: {refs: [{kind: MeshService, name: a, labels: {b: c}}]}}"
        ),
        [(f"{REF}.labels", "labels cannot be defined when name is specified")],
    ),
    (
        networking("transparentProxying: {redirectPortInbound: 70000}"),
        [
            (
                "networking.transparentProxying.redirectPortInbound",
                "in body should be less than or equal to 65535",
            )
        ],
    ),
    (
        networking("listeners: [{}]"),
        [
            ("networking.listeners[0].type", "type must be ZoneIngress or ZoneEgress"),
            ("networking.listeners[0].address", "address can't be empty"),
            ("networking.listeners[0].port", PORT),
        ],
    ),
    (
        networking(f"listeners: [{{{LISTENER}}}, {{type: ZoneEgress, address: 10.0.0.1, port: 10001}}]"),
        [
            (
                "networking.listeners[1]",
                "address:port 10.0.0.1:10001 is used by listeners of different types",
            )
        ],
    ),
    (
        networking(f"inbound: [{{port: 80, name: a}}], listeners: [{{{LISTENER}, name: a}}]"),
        [("networking.listeners[0].name", 'name "a" must be unique across inbounds and listeners')],
    ),
    (
        networking(more="probes: {endpoints: [{inboundPath: health}]}"),
        [
            ("probes.port", PORT),
            ("probes.endpoints[0].inboundPort", PORT),
            ("probes.endpoints[0].inboundPath", "should be a valid URL Path"),
            ("probes.endpoints[0].path", "should be a valid URL Path"),
        ],
    ),
    (
        networking(more="metrics: {name: m, type: statsd}"),
        [("metrics.type", 'unknown backend type. Available backends: "prometheus"')],
    ),
    (
        networking("inbound: [{port: '80', state: ready}]"),
        [
            (f"{IN}.port", 'in body must be of type integer: "string"'),
            (f"{IN}.state", 'in body should be one of [Ready NotReady Ignored]; did you mean "Ready"?'),
        ],
    ),
]


@pytest.mark.parametrize(("spec", "expected"), REFUSED)
def test_a_dataplane_must_not_say_this(spec: str, expected: Expected) -> None:
    assert violations("Dataplane", spec) == expected
