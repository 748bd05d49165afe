"""What services, their names and their zones' addresses may say."""

import pytest
from kinds_check import Expected, violations, warnings

PROTOCOL = "appProtocol must be one of: grpc, http, http2, kafka, tcp"
PORT = "port must be a valid (1-65535)"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (
            "{selector: {dataplaneRef: {name: a}, dataplaneLabels: {}}}",
            [("spec.selector", "must specify only one of: dataplaneRef or dataplaneLabels")],
        ),
        (
            "{ports: [{port: 1, appProtocol: kubernetes.io/h2c}, {port: 2, appProtocol: kubernetes.io/ws}]}",
            [],
        ),
        ("{ports: [{port: 80, appProtocol: kubernetes.io/wss}]}", [("spec.ports[0].appProtocol", PROTOCOL)]),
        ("{ports: [{port: 80, appProtocol: amqp}]}", [("spec.ports[0].appProtocol", PROTOCOL)]),
        (
            "{ports: [{port: 0}, {}]}",
            [
                ("spec.ports[0].port", "in body should be greater than or equal to 1"),
                ("spec.ports[1].port", "in body is required"),
            ],
        ),
        ("{state: Gone}", [("spec.state", "in body should be one of [Available Unavailable]")]),
        (
            "{ports: [{port: 80, targetPort: [80]}]}",
            [("spec.ports[0].targetPort", 'in body must be of type integer or string: "array"')],
        ),
    ],
)
def test_a_mesh_service_is_proxies_and_ports(spec: str, expected: Expected) -> None:
    assert violations("MeshService", spec) == expected


SELECTED = "selector: {meshService: {matchLabels: {a: b}}}"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (
            "{}",
            [("spec.selector.meshService.matchLabels", "cannot be empty"), ("spec.ports", "cannot be empty")],
        ),
        (
            "{selector: {meshService: {matchLabels: {}}}, ports: [{port: 80}]}",
            [("spec.selector.meshService.matchLabels", "cannot be empty")],
        ),
        (
            f"{{{SELECTED}, ports: [{{port: 80, name: '', appProtocol: amqp}}]}}",
            [("spec.ports[0].name", "must not be empty"), ("spec.ports[0].appProtocol", PROTOCOL)],
        ),
    ],
)
def test_a_service_of_many_zones_names_its_parts(spec: str, expected: Expected) -> None:
    assert violations("MeshMultiZoneService", spec) == expected


SELECTOR = "exact one selector (meshService, meshExternalService) must be defined"
KNOWN = ".DisplayName, .Mesh, .Name, .Namespace, .Zone"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("{template: a}", [("spec.selector", SELECTOR)]),
        (
            "{selector: {meshService: {}, meshExternalService: {}}, template: a}",
            [("spec.selector", SELECTOR)],
        ),
        ("{selector: {meshService: {}}}", [("spec.template", "must not be empty")]),
        (
            "{selector: {meshService: {}}, template: '{{ .Nmae }}'}",
            [
                (
                    "spec.template",
                    f'couldn\'t parse template: unknown field in "{{{{ .Nmae }}}}"; known are {KNOWN}',
                )
            ],
        ),
        (
            "{selector: {meshService: {}}, template: a, extension: {type: ''}}",
            [("spec.extension.type", "must not be empty")],
        ),
    ],
)
def test_a_generator_selects_one_kind_and_has_a_template(spec: str, expected: Expected) -> None:
    assert violations("HostnameGenerator", spec) == expected


@pytest.mark.parametrize(
    ("template", "warned"),
    [
        ('{{ .Name }}.{{ label "a" }}', []),
        ("{{ .Name }}_mesh", ['spec.template gives names such as "x_mesh", which are no host names']),
    ],
)
def test_a_template_that_can_give_no_host_name_is_noted(template: str, warned: list[str]) -> None:
    assert (
        warnings("HostnameGenerator", f"{{selector: {{meshService: {{}}}}, template: '{template}'}}")
        == warned
    )


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("{}", [("spec.address", "must not be empty"), ("spec.port", PORT)]),
        (
            "{address: '::', port: 70000}",
            [("spec.address", "must not be 0.0.0.0 or ::"), ("spec.port", PORT)],
        ),
        (
            "{address: 'a b', port: 1}",
            [("spec.address", "address has to be valid IP address or domain name")],
        ),
    ],
)
def test_a_zone_says_where_it_is_found(spec: str, expected: Expected) -> None:
    assert violations("MeshZoneAddress", spec) == expected


def test_a_workload_has_nothing_to_say() -> None:
    assert violations("Workload", "{}") == []
    assert violations("Workload", "{a: b}") == [("spec.a", 'unknown field "a"')]


def test_a_secret_is_base64() -> None:
    assert violations("Secret", "{data: aGVsbG8=}") == []
    assert violations("GlobalSecret", "{data: 'not base64'}") == [("data", "must be base64")]
    assert violations("Zone", "{enabled: 'yes'}") == [
        ("enabled", 'in body must be of type boolean: "string"')
    ]
