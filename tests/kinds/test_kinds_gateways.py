"""What gateways and zone proxies may say."""

import pytest
from kinds_check import Expected, violations

PORT = "port must be in the range [1, 65535]"
FORBIDDEN = ("kuma.io/external-service-name", "kuma.io/protocol", "kuma.io/service", "kuma.io/zone")
CERT = "{secret: c}"
NAME = "must be a DNS label, at most 63 lower-case letters, digits and hyphens, and no number"
AT = "conf.listeners[0]"
SELECTOR_VALUE = (
    'tag value must consist of alphanumeric characters, dots, dashes, slashes and underscores or be "*"'
)


def gateway(*listeners: str, selectors: str = "[{match: {kuma.io/service: edge}}]", tags: str = "{}") -> str:
    return f"{{selectors: {selectors}, tags: {tags}, conf: {{listeners: [{', '.join(listeners)}]}}}}"


REFUSED: list[tuple[str, Expected]] = [
    ("{}", [("selectors", "must have at least one element"), ("conf", "cannot be empty")]),
    (gateway(), [("conf.listeners", "cannot be empty")]),
    (
        gateway("{port: 80, protocol: HTTP}", selectors="[{}, {match: {team: 'a b'}}]"),
        [
            ("selectors[0].match", "must have at least one tag"),
            ("selectors[0].match", 'mandatory tag "kuma.io/service" is missing'),
            (
                'selectors[1].match["team"]',
                SELECTOR_VALUE,
            ),
            ("selectors[1].match", 'mandatory tag "kuma.io/service" is missing'),
        ],
    ),
    (
        gateway(
            "{port: 80, protocol: HTTP, crossMesh: true}",
            selectors="[{match: {kuma.io/service: a}}, {match: {kuma.io/service: b}}]",
        ),
        [("selectors[1]", "there can be at most one selector")],
    ),
    (
        gateway(
            f"{{port: 80, protocol: HTTP, tags: {{{', '.join(f'{tag}: x' for tag in FORBIDDEN)}}}}}",
            tags=f"{{{', '.join(f'{tag}: x' for tag in FORBIDDEN)}}}",
        ),
        [(f'tags["{tag}"]', f'tag name must not be "{tag}"') for tag in FORBIDDEN]
        + [(f'{AT}.tags["{tag}"]', f'tag name must not be "{tag}"') for tag in FORBIDDEN],
    ),
    (gateway("{port: 80, protocol: HTTP, hostname: a_b..c}"), [(f"{AT}.hostname", "invalid hostname")]),
    (
        gateway("{port: 80, protocol: HTTP, hostname: '*.*.c'}"),
        [(f"{AT}.hostname", "invalid wildcard domain")],
    ),
    (
        gateway(f"{{port: 80, protocol: HTTP, hostname: {'a.' * 126}ab}}"),
        [(f"{AT}.hostname", "must be at most 253 characters")],
    ),
    (gateway("{}"), [(f"{AT}.port", PORT), (f"{AT}.protocol", "cannot be empty")]),
    (gateway("{port: 80, protocol: NONE}"), [(f"{AT}.protocol", "cannot be empty")]),
    (
        gateway("{port: 80, protocol: HTTPS, crossMesh: true}"),
        [(f"{AT}.protocol", "protocol is not supported with crossMesh")],
    ),
    (gateway("{port: 80, protocol: HTTPS}"), [(f"{AT}.tls", "cannot be empty")]),
    (
        gateway("{port: 80, protocol: HTTP, crossMesh: true, tls: {mode: TERMINATE}}"),
        [(f"{AT}.tls", "must be empty with crossMesh")],
    ),
    (
        gateway("{port: 80, protocol: HTTPS, tls: {mode: PASSTHROUGH}}"),
        [(f"{AT}.tls.mode", "mode is not supported on HTTPS listeners")],
    ),
    (gateway("{port: 80, protocol: HTTPS, tls: {}}"), [(f"{AT}.tls.mode", "cannot be empty")]),
    (
        gateway("{port: 80, protocol: HTTPS, tls: {mode: TERMINATE}}"),
        [(f"{AT}.tls.certificates", "cannot be empty in TLS termination mode")],
    ),
    (
        gateway(
            f"{{port: 80, protocol: HTTPS, tls: {{mode: TERMINATE, certificates: [{CERT}, {CERT}, {CERT}]}}}}"
        ),
        [(f"{AT}.tls.certificates", "cannot have more than 2 certificates")],
    ),
    (
        gateway("{port: 80, protocol: HTTP, hostname: a}", "{port: 80, protocol: TCP, hostname: b}"),
        [(f"conf.listeners[{i}]", "protocol conflicts with other listeners on this port") for i in (0, 1)],
    ),
    (
        gateway("{port: 80, protocol: HTTP}", "{port: 80, protocol: HTTP, hostname: '*'}"),
        [(f"conf.listeners[{i}]", "multiple listeners for hostname on this port") for i in (0, 1)],
    ),
    (
        gateway("{port: 80, protocol: HTTP, hostname: a.lan}", "{port: 80, protocol: HTTP, hostname: A.lan}"),
        [(f"conf.listeners[{i}]", "multiple listeners for hostname on this port") for i in (0, 1)],
    ),
    *[
        (gateway(f"{{name: {name}, port: 80, protocol: HTTP}}"), [(f"{AT}.name", NAME)])
        for name in ("''", "'80'", "Shop", "shop.lan", f"{'a' * 64}")
    ],
    (
        gateway("{name: a, port: 80, protocol: HTTP}", "{name: a, port: 81, protocol: HTTP}"),
        [(f"conf.listeners[{i}].name", "must be unique among the listeners of a gateway") for i in (0, 1)],
    ),
    (
        gateway(
            "{port: 80, protocol: HTTP, hostname: a, resources: {connectionLimit: 1}}",
            "{port: 80, protocol: HTTP, hostname: b, resources: {connectionLimit: 2}}",
            "{port: 80, protocol: HTTP, hostname: c}",
        ),
        [
            (f"conf.listeners[{i}].resources.connectionLimit", "conflicting values for this port")
            for i in (0, 1)
        ],
    ),
]


@pytest.mark.parametrize(("spec", "expected"), REFUSED)
def test_a_mesh_gateway_must_not_say_this(spec: str, expected: Expected) -> None:
    assert violations("MeshGateway", spec) == expected


ADDRESS = "address has to be valid IP address or domain name"


@pytest.mark.parametrize("kind", ["ZoneIngress", "ZoneEgress"])
@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("{}", [("networking.port", PORT)]),
        ("{networking: {port: 70000}}", [("networking.port", PORT)]),
        (
            "{networking: {address: 127.0.0.1, port: 80, admin: {port: 80}}}",
            [("networking.admin.port", "must differ from port")],
        ),
        ("{networking: {address: '<>', port: 80}}", [("networking.address.address", ADDRESS)]),
        (
            "{networking: {address: 0.0.0.0, port: 80}}",
            [("networking.address.address", "must not be 0.0.0.0 or ::")],
        ),
    ],
)
def test_a_zone_proxy_says_where_it_listens(kind: str, spec: str, expected: Expected) -> None:
    assert violations(kind, spec) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (
            "{networking: {port: 80, advertisedPort: 443}}",
            [("networking.advertisedAddress", "has to be defined with advertisedPort")],
        ),
        (
            "{networking: {port: 80, advertisedAddress: a.com}}",
            [("networking.advertisedPort", "has to be defined with advertisedAddress")],
        ),
        (
            "{networking: {port: 80, advertisedAddress: '<>', advertisedPort: 70000}}",
            [("networking.advertisedAddress.address", ADDRESS), ("networking.advertisedPort", PORT)],
        ),
        (
            "{networking: {port: 80}, availableServices: [{tags: {a: ''}}]}",
            [
                ('availableService[0].tags["a"]', "tag value must be non-empty"),
                ("availableService[0].tags", 'mandatory tag "kuma.io/service" is missing'),
            ],
        ),
    ],
)
def test_a_zone_ingress_says_where_others_find_it(spec: str, expected: Expected) -> None:
    assert violations("ZoneIngress", spec) == expected
