"""What a Mesh may say."""

import pytest
from kinds_check import Expected, violations

from koguma.kinds import mesh

BUILTIN = "{enabledBackend: a, backends: [{name: a, type: builtin}]}"
ELEVEN = ", ".join(f"{{name: a{number}, type: builtin}}" for number in range(11))
CONF = "mtls.backends[0].conf"
LOG = "logging.backends[0]"
TRACE = "tracing.backends[0]"
SELECTOR_VALUE = (
    'tag value must consist of alphanumeric characters, dots, dashes, slashes and underscores or be "*"'
)

REFUSED: list[tuple[str, Expected]] = [
    (
        "mtls: {backends: [{name: a, type: builtin}, {name: a, type: builtin}]}",
        [("mtls.backends[1].name", '"a" name is already used for another backend')],
    ),
    (f"mtls: {{backends: [{ELEVEN}]}}", [("mtls.backends", "cannot have more than 10 backends")]),
    (
        "mtls: {backends: [{name: a, type: builtin, dpCert: {rotation: {expiration: 1d12h}}}]}",
        [("mtls.dpcert.rotation.expiration", "has to be a valid format")],
    ),
    (
        "mtls: {enabledBackend: b, backends: [{name: a, type: builtin}]}",
        [("mtls.enabledBackend", "has to be set to one of the backends in the mesh")],
    ),
    ("routing: {zoneEgress: true}", [("mtls", "has to be set when zoneEgress enabled")]),
    (
        "mtls: {backends: [{name: a, type: vault}]}",
        [("mtls.backends[0].type", "could not find installed plugin for this type")],
    ),
    (
        "mtls: {skipValidation: true, backends: [{name: a}]}",
        [("mtls.backends[0].type", "could not find installed plugin for this type")],
    ),
    (
        "mtls: {backends: [{name: a, type: builtin, conf: {caCert: {RSAbits: many}}}]}",
        [
            (
                CONF,
                'could not convert backend config: caCert.RSAbits in body must be of type integer: "string"',
            )
        ],
    ),
    (
        "mtls: {backends: [{name: a, type: builtin, conf: {caCert: {RSAbits: 1024, expiration: soon}}}]}",
        [
            (f"{CONF}.caCert.RSAbits", "must be in the range [2048, 4096]"),
            (f"{CONF}.caCert.expiration", "has to be a valid format"),
        ],
    ),
    (
        "mtls: {backends: [{name: a, type: builtin, conf: {cacert: {}}}]}",
        [(f"{CONF}.cacert", 'unknown field "cacert"; did you mean "caCert"?')],
    ),
    (
        f"mtls: {{backends: [{{name: {'a' * 236}, type: builtin}}]}}",
        [(f"{CONF}.mtls.backends.name", "Backend name is too long. Max length: 235")],
    ),
    (
        "mtls: {backends: [{name: A_b, type: builtin}]}",
        [(f"{CONF}.mtls.backends.name", '"A_b" name must be valid dns name')],
    ),
    (
        "mtls: {backends: [{name: a, type: provided}]}",
        [(f"{CONF}.cert", "has to be defined"), (f"{CONF}.key", "has to be defined")],
    ),
    (
        "mtls: {backends: [{name: a, type: provided, conf: {cert: {}, key: {secret: a, file: /b}}}]}",
        [
            (f"{CONF}.cert", "data source cannot be empty"),
            (CONF, "could not convert backend config: key has secret and file; keep one of them"),
        ],
    ),
    (
        "constraints: {dataplaneProxy: {requirements: [{}], restrictions: [{tags: {a: 'b c'}}]}}",
        [
            ("constraints.dataplaneProxy.requirements[0].tags", "must have at least one tag"),
            (
                'constraints.dataplaneProxy.restrictions[0].tags["a"]',
                SELECTOR_VALUE,
            ),
        ],
    ),
    (
        "logging: {backends: [{name: a, type: syslog}]}",
        [(f"{LOG}.type", 'unknown backend type. Available backends: "tcp", "file"')],
    ),
    (
        "logging: {backends: [{type: tcp}]}",
        [(f"{LOG}.name", "cannot be empty"), (f"{LOG}.config.address", "cannot be empty")],
    ),
    (
        "logging: {backends: [{name: a, type: tcp, conf: {address: nowhere}}]}",
        [(f"{LOG}.config.address", "has to be in format of HOST:PORT")],
    ),
    (
        "logging: {backends: [{name: a, type: tcp, conf: {address: '::1:80'}}]}",
        [(f"{LOG}.config.address", "has to be in format of HOST:PORT")],
    ),
    (
        "logging: {backends: [{name: a, type: tcp, conf: {address: 1}}]}",
        [(f"{LOG}.config", 'could not parse config: address in body must be of type string: "integer"')],
    ),
    (
        "logging: {backends: [{name: a, type: file, conf: {path: /x, paht: /y}}]}",
        [(f"{LOG}.conf.paht", 'unknown field "paht"; did you mean "path"?')],
    ),
    (
        "logging: {backends: [{name: a, type: file}, {name: a, type: file, conf: {path: /x}}]}",
        [
            (f"{LOG}.config.path", "cannot be empty"),
            ("logging.backends[1].name", '"a" name is already used for another backend'),
        ],
    ),
    (
        "logging: {defaultBackend: b, backends: [{name: a, type: file, conf: {path: /x}}]}",
        [("logging.defaultBackend", "has to be set to one of the logging backend in mesh")],
    ),
    (
        "tracing: {defaultBackend: b, backends: [{name: a, sampling: 101, type: jaeger}]}",
        [
            (f"{TRACE}.sampling", "has to be in [0.0 - 100.0] range"),
            (f"{TRACE}.type", 'unknown backend type. Available backends: "zipkin", "datadog"'),
            ("tracing.defaultBackend", "has to be set to one of the tracing backend in mesh"),
        ],
    ),
    ("tracing: {backends: [{name: a, type: zipkin}]}", [(f"{TRACE}.config.url", "cannot be empty")]),
    (
        "tracing: {backends: [{name: a, type: zipkin, conf: {url: nowhere, apiVersion: v9}}]}",
        [
            (
                f"{TRACE}.config.apiVersion",
                "has invalid value. Allowed values: httpJsonV1, httpJson, httpProto",
            ),
            (f"{TRACE}.config.url", "invalid URL"),
        ],
    ),
    (
        "tracing: {backends: [{name: a, type: zipkin, conf: {url: 'http://zipkin/'}}]}",
        [(f"{TRACE}.config.url", "port has to be explicitly specified")],
    ),
    (
        "tracing: {backends: [{name: a, type: datadog}]}",
        [
            (f"{TRACE}.config.address", "cannot be empty"),
            (f"{TRACE}.config.port", "port must be in the range [1, 65535]"),
        ],
    ),
    (
        "metrics: {backends: [{name: a, type: prometheus, conf: {aggregate: [{name: x}, {}, {name: x}]}}]}",
        [("metrics.backends[0].conf.aggregate[2].name", "duplicate entry: x, values have to be unique")],
    ),
    *(
        (
            f"metrics: {{backends: [{{name: a, type: prometheus, conf: {{skipMTLS: {skip}, tls: {tls}}}}}]}}",
            [("metrics.backends[0].conf", "skipMTLS and tls configuration cannot be defined together")],
        )
        for skip, tls in (
            ("true", "{}"),
            ("true", "{mode: providedTLS}"),
            ("true", "{mode: activeMTLSBackend}"),
            ("false", "{mode: disabled}"),
        )
    ),
    (
        "metrics: {enabledBackend: b, backends: [{name: a, type: statsd}, {name: a, type: prometheus}]}",
        [
            ("metrics.backends[0].type", 'unknown backend type. Available backends: "prometheus"'),
            ("metrics.backends[1].name", '"a" name is already used for another backend'),
            ("metrics.enabledBackend", "has to be set to one of the backends in the mesh"),
        ],
    ),
    (
        "mtls: {backends: [{name: a, type: builtin, mode: LOOSE}]}",
        [("mtls.backends[0].mode", "in body should be one of [STRICT PERMISSIVE]")],
    ),
]


@pytest.mark.parametrize(("spec", "expected"), REFUSED)
def test_a_mesh_must_not_say_this(spec: str, expected: Expected) -> None:
    assert violations("Mesh", spec) == expected


B = "mtls: {enabledBackend: b, backends: [{name: b, type: builtin}]}"
BOTH = "mtls: {enabledBackend: b, backends: [{name: a, type: builtin}, {name: b, type: builtin}]}"


@pytest.mark.parametrize(
    ("stored", "spec"),
    [
        (f"mtls: {BUILTIN}", B),
        (f"mtls: {BUILTIN}", BOTH),
        (f"mtls: {BUILTIN}", f"mtls: {BUILTIN}"),
        ("mtls: {backends: [{name: a, type: builtin}]}", B),
        (f"mtls: {BUILTIN}", "mtls: {backends: [{name: b, type: builtin}]}"),
        (f"mtls: {BUILTIN}", "{}"),
        ("mtls: null", B),
    ],
)
def test_the_ca_may_change_while_mtls_is_on(stored: str, spec: str) -> None:
    assert violations("Mesh", spec, stored=stored) == []


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("1d", 86_400), ("10y", 315_360_000), ("2w", 1_209_600), ("90m", 5_400), ("500ms", 0.5)],
)
def test_a_mesh_counts_in_days_and_years(text: str, seconds: float) -> None:
    assert mesh.seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "1", "d", "1h30m", "-1d", "1.5h"])
def test_a_duration_of_a_mesh_is_one_number_and_one_unit(text: str) -> None:
    with pytest.raises(ValueError, match="such as"):
        mesh.seconds(text)
