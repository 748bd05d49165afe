"""What a MeshExternalService may say, in either of its shapes."""

import pytest
from kinds_check import Expected, violations, warnings

PORT = "port must be a valid (1-65535)"
VERSIONS = '["TLSAuto", "TLS10", "TLS11", "TLS12", "TLS13"]'
DOWN = "{min: TLSv1_3, max: TLSv1_2}"
VIP = "{type: InternalVIP, value: a.ext.svc.local, port: 80, protocol: http}"


def verified(text: str) -> str:
    return f"{{match: {{port: 80}}, tls: {{verification: {{{text}}}}}}}"


REFUSED: list[tuple[str, Expected]] = [
    ("{}", [("spec.match", "in body is required")]),
    (
        "{match: [{type: Host, value: a, port: 0, protocol: udp}]}",
        [
            ("spec.match[0].type", "in body should be one of [InternalVIP Domain CIDR IP]"),
            ("spec.match[0].port", "in body should be greater than or equal to 1"),
            ("spec.match[0].protocol", "in body should be one of [tcp tls http http2 grpc]"),
        ],
    ),
    (
        f"{{match: [{VIP}], destination: {{type: Direct, endpoints: [{{address: ''}}]}}}}",
        [
            ("spec.destination.type", "in body should be one of [Regular Passthrough Extension]"),
            ("spec.destination.endpoints[0].address", "in body should be at least 1 chars long"),
        ],
    ),
    (
        (
            f"{{match: [{VIP}], destination: {{type: Regular, endpoints: [{{address: a.com}}],"
            f" tls: {{version: {DOWN}, clientKey: {{secret: k}}}}}}}}"
        ),
        [
            ("spec.destination.tls.version.min", "min version must be lower than max"),
            ("spec.destination.tls.clientCert", "must be defined when clientKey is defined"),
        ],
    ),
    (
        (
            f"{{match: [{VIP}], destination: {{type: Regular, endpoints: [{{address: a.com}}],"
            " tls: {enabled: true, caCert: {}, clientCert: {secret: c, inlineString: d},"
            " clientKey: {secret: k}}}}"
        ),
        [
            ("spec.destination.tls.caCert", "must have exactly one of secret, inline and inlineString"),
            ("spec.destination.tls.clientCert", "must have exactly one of secret, inline and inlineString"),
        ],
    ),
    (
        "{match: [{type: IP, value: '::ffff:10.9.1.1', port: 80, protocol: tcp}]}",
        [("spec.match[0].value", "must be written as an IPv4 address: 10.9.1.1")],
    ),
    (
        "{match: {type: Domain, port: 0, protocol: tls}}",
        [
            ("spec.match.type", "unrecognized type 'Domain' - only 'HostnameGenerator' is supported"),
            ("spec.match.port", PORT),
            ("spec.match.protocol", '"protocol" must be one of ["tcp", "grpc", "http", "http2"]'),
        ],
    ),
    ("{match: {}}", [("spec.match.port", PORT)]),
    (
        "{match: {port: 80}, endpoints: [{address: '<>', port: 70000}]}",
        [
            ("spec.endpoints[0].address", "address has to be a valid IP or hostname"),
            ("spec.endpoints[0].port", PORT),
        ],
    ),
    (
        "{match: {port: 80}, endpoints: [{address: a, port: 1, priority: 129}]}",
        [("spec.endpoints[0].priority", "in body should be less than or equal to 128")],
    ),
    (
        "{match: {port: 80}, tls: {version: {min: TLS9, max: SSL}}}",
        [
            ("spec.tls.version.min", f'"min" must be one of {VERSIONS}'),
            ("spec.tls.version.max", f'"max" must be one of {VERSIONS}'),
        ],
    ),
    (
        "{match: {port: 80}, tls: {version: {min: TLS13, max: TLS10}}}",
        [("spec.tls.version.min", "min version must be lower than max")],
    ),
    (
        verified("mode: Odd, serverName: 'a b', subjectAltNames: [{type: Odd, value: a}]"),
        [
            ("spec.tls.verification.serverName", "must be a valid DNS name"),
            (
                "spec.tls.verification.mode",
                '"mode" must be one of ["SkipSAN", "SkipCA", "SkipAll", "Secured"]',
            ),
            ("spec.tls.verification.subjectAltNames[0].type", '"type" must be one of ["Prefix", "Exact"]'),
        ],
    ),
    (
        verified("clientCert: {secret: a}"),
        [("spec.tls.verification.clientKey", "must be defined when clientCert is defined")],
    ),
    (
        verified("clientKey: {secret: a}"),
        [("spec.tls.verification.clientCert", "must be defined when clientKey is defined")],
    ),
    (
        verified("caCert: {type: File, file: {path: /x}}"),
        [("spec.tls.verification.caCert.type", "File must be one of: Secret, InsecureInline")],
    ),
    (
        verified("caCert: {type: Secret}"),
        [("spec.tls.verification.caCert.secretRef", "must be defined")],
    ),
    (
        verified("caCert: {type: InsecureInline, insecureInline: {value: ''}}"),
        [("spec.tls.verification.caCert.insecureInline.value", "must be defined")],
    ),
    ("{match: {port: 80}, extension: {type: ''}}", [("spec.extension.type", "must not be empty")]),
]


NO_VIP = (
    "a virtual address leads nowhere by itself: InternalVIP needs a destination of type Regular or Extension"
)
PASSES = 'type "Passthrough", the default, sends calls on as they are and has no'
REGULAR = 'type "Regular" sends calls to endpoints and has no'
EXTENDS = 'type "Extension" gives calls to a plugin and has no'
DOMAIN = "match: [{type: Domain, value: a.com, port: 80, protocol: http}]"
WHERE = "endpoints: [{address: 10.0.0.1}]"
REFUSED += [
    # A virtual address has no original destination.
    (f"{{match: [{VIP}]}}", [("spec.match[0].type", NO_VIP)]),
    (f"{{match: [{VIP}], destination: {{type: Passthrough}}}}", [("spec.match[0].type", NO_VIP)]),
    # The exclusions of the founding document.
    (
        f"{{{DOMAIN}, destination: {{{WHERE}, tls: {{enabled: true}}, extension: {{type: Lambda}}}}}}",
        [
            ("spec.destination.endpoints", f'{PASSES} "endpoints"; for that set type to "Regular"'),
            ("spec.destination.tls", f'{PASSES} "tls"; for that set type to "Regular"'),
            ("spec.destination.extension", f'{PASSES} "extension"; for that set type to "Extension"'),
        ],
    ),
    (
        f"{{{DOMAIN}, destination: {{type: Regular, {WHERE}, extension: {{type: Lambda}}}}}}",
        [
            (
                "spec.destination.extension",
                f'{REGULAR} "extension"; for that set type to "Extension"',
            )
        ],
    ),
    (
        f"{{{DOMAIN}, destination: {{type: Extension, {WHERE}, tls: {{}}, extension: {{type: ''}}}}}}",
        [
            (
                f"spec.destination.{field}",
                f'{EXTENDS} "{field}"; for that set type to "Regular"',
            )
            for field in ("endpoints", "tls")
        ]
        + [("spec.destination.extension.type", "must not be empty")],
    ),
    (
        f"{{{DOMAIN}, destination: {{type: Extension}}}}",
        [("spec.destination.extension", "must not be empty")],
    ),
    (
        f"{{{DOMAIN}, destination: {{type: Regular}}}}",
        [("spec.destination.endpoints", "must not be empty")],
    ),
    (
        (
            f"{{match: [{{type: Domain, value: '*.a.com', port: 443, protocol: tls}}],"
            f" destination: {{type: Regular, {WHERE}}}}}"
        ),
        [("spec.match[0].value", "a wildcard domain needs a destination of type Passthrough, not Regular")],
    ),
    # What each match may be.
    ("{match: []}", [("spec.match", "must not be empty")]),
    (
        (
            "{match: [{type: Domain, value: 'a*.com', port: 1, protocol: http},"
            " {type: IP, value: 10.0.0.0/8, port: 2, protocol: tcp},"
            " {type: CIDR, value: 10.0.0.1, port: 3, protocol: tcp}]}"
        ),
        [
            ("spec.match[0].value", 'must be a domain, which may begin with "*."'),
            ("spec.match[1].value", "must be an IP address"),
            ("spec.match[2].value", "must be a range of addresses, such as 10.1.0.0/16"),
        ],
    ),
    (
        (
            f"{{match: [{{type: Domain, value: a.com, port: 443, protocol: tls}}],"
            f" destination: {{type: Regular, {WHERE}, tls: {{enabled: true}}}}}}"
        ),
        [
            (
                "spec.match[0].protocol",
                (
                    "tls means that programs start TLS themselves, and spec.destination.tls that the proxy"
                    " does; choose the protocol inside of TLS, or leave spec.destination.tls out"
                ),
            )
        ],
    ),
    (
        (
            "{match: [{type: CIDR, value: 10.0.0.0/8, port: 80, protocol: http},"
            " {type: IP, value: 10.1.1.1, port: 80, protocol: tcp},"
            " {type: Domain, value: '*.a.com', port: 80, protocol: http},"
            " {type: Domain, value: B.a.com, port: 80, protocol: grpc},"
            " {type: Domain, value: '*.a.com', port: 80, protocol: http}]}"
        ),
        [
            (
                "spec.match[1].protocol",
                "one port speaks one protocol: spec.match[0] has http on port 80 there",
            ),
            (
                "spec.match[3].protocol",
                "one port speaks one protocol: spec.match[2] has http on port 80 there",
            ),
            ("spec.match[4]", "is the same as spec.match[2]"),
            (
                "spec.match[4].protocol",
                "one port speaks one protocol: spec.match[3] has grpc on port 80 there",
            ),
        ],
    ),
    (
        (
            f"{{{DOMAIN}, destination: {{type: Regular, endpoints: [{{address: 'unix://x'}},"
            " {address: 'unix:///x', port: 1}, {address: '<'}]}}"
        ),
        [
            (
                "spec.destination.endpoints[0].address",
                "must be unix:// and an absolute path, such as unix:///run/app.sock",
            ),
            ("spec.destination.endpoints[1].port", "a unix socket has no port; leave it out"),
            (
                "spec.destination.endpoints[2].address",
                "must be an IP address, a domain, or unix:// and a path",
            ),
        ],
    ),
    (
        (
            f"{{{DOMAIN}, destination: {{type: Regular, endpoints: ["
            '{address: "unix:///run/a\\0b"}, '
            f"{{address: 'unix:///{'x' * 106}'}}, {{address: 'unix:///{'x' * 107}'}}]}}}}"
        ),
        [
            (
                "spec.destination.endpoints[0].address",
                "must be unix:// and an absolute path, such as unix:///run/app.sock",
            ),
            (
                "spec.destination.endpoints[2].address",
                "the path of a unix socket has at most 107 bytes",
            ),
        ],
    ),
    # Two shapes in one.
    (
        f"{{{DOMAIN}, {WHERE.replace('1}', '1, port: 1}')}}}",
        [
            (
                "spec.endpoints",
                'goes with a single match; with a list of matches write it in "spec.destination"',
            )
        ],
    ),
    (
        "{match: {port: 80}, destination: {type: Passthrough}}",
        [
            (
                "spec.destination",
                'goes with a list of matches; with a single match write "endpoints" and "tls" beside it',
            )
        ],
    ),
]


@pytest.mark.parametrize(("spec", "expected"), REFUSED)
def test_an_external_service_must_not_say_this(spec: str, expected: Expected) -> None:
    assert violations("MeshExternalService", spec) == expected


def test_a_domain_over_tcp_takes_its_whole_port():
    named = "{type: Domain, value: a.com, port: 5432, protocol: tcp}"
    (text,) = warnings("MeshExternalService", f"{{match: [{named}]}}")
    assert text == (
        "spec.match[0]: a tcp connection does not say which domain it is for, so this takes all traffic on"
        " port 5432; choose tls, http, http2 or grpc, or match addresses"
    )
    address = "{type: IP, value: 10.0.0.1, port: 5432, protocol: tcp}"
    assert warnings("MeshExternalService", f"{{match: [{named}, {address}]}}") == []


def test_domains_and_sockets_in_one_service_are_warned_of():
    """The founding document's own example has both, so that they are legal."""
    endpoints = "{address: 'unix:///x'}, {address: 10.0.0.1}, {address: a.example}"
    spec = f"{{match: [{VIP}], destination: {{type: Regular, endpoints: [{endpoints}]}}}}"
    assert violations("MeshExternalService", spec) == []
    (text,) = warnings("MeshExternalService", spec)
    assert text.startswith("spec.destination.endpoints: Envoy resolves all endpoints of a service or none")
