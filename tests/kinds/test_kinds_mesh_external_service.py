"""What a MeshExternalService may say, in either of its shapes."""

import pytest
from kinds_check import Expected, violations

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
        f"{{match: [{VIP}], destination: {{tls: {{version: {DOWN}, clientKey: {{secret: k}}}}}}}}",
        [
            ("spec.destination.tls.version.min", "min version must be lower than max"),
            ("spec.destination.tls.clientCert", "must be defined when clientKey is defined"),
        ],
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


@pytest.mark.parametrize(("spec", "expected"), REFUSED)
def test_an_external_service_must_not_say_this(spec: str, expected: Expected) -> None:
    assert violations("MeshExternalService", spec) == expected
