"""What an external service may say about the plugin that it leads to: the built-in ones, and any other."""

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
import yaml
from kinds_check import Expected, violations, warnings

from koguma.kinds import mesh_external_service, secret_references
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.destination import DestinationParts, DestinationPlugin, SecretRef
from koguma.model.kind import ValidationContext
from koguma.model.schema import SecretText, Spec, doc
from koguma.model.typed_parts import masked
from koguma.model.violation import Violation

KIND = "MeshExternalService"
ARN = "arn:aws:lambda:us-west-2:123456789012:function:my-function"
CONFIG = "spec.destination.extension.config"
NO_ARN = "must be arn:aws:lambda:REGION:ACCOUNT:function:NAME, and perhaps :VERSION"
NO_URL = "must be http:// or https://, a host, and perhaps a port, such as http://localhost:4566"


def written(config: str, protocol: str = "http", type_: str = "Lambda") -> str:
    """A service in the founding document's shape, with this plugin."""
    match = f"{{type: InternalVIP, value: a.ext.svc.local, port: 80, protocol: {protocol}}}"
    extension = f"{{type: {type_}, config: {config}}}"
    return f"{{match: [{match}], destination: {{type: Extension, extension: {extension}}}}}"


def released(config: str, protocol: str = "http", type_: str = "Lambda") -> str:
    """The same in the shape that Kuma released."""
    return f"{{match: {{port: 80, protocol: {protocol}}}, extension: {{type: {type_}, config: {config}}}}}"


@pytest.mark.parametrize(
    "config",
    [
        f'{{arn: "{ARN}"}}',
        f'{{arn: "{ARN}:$LATEST", payloadPassthrough: true, invocationMode: Asynchronous}}',
        f'{{arn: "{ARN}:7", credentials: {{secret: aws}}, endpoint: "http://127.0.0.1:4566"}}',
        f'{{arn: "{ARN}", endpoint: "https://[::1]:443/", caCert: {{secret: ca}}}}',
        '{arn: "arn:aws-cn:lambda:cn-north-1:123456789012:function:f"}',
        '{arn: "arn:aws-iso:lambda:us-iso-east-1:123456789012:function:f", endpoint: "https://lambda.example"}',
    ],
)
@pytest.mark.parametrize("shape", [written, released])
def test_a_legal_function_is_taken_in_both_shapes(shape, config: str):
    for protocol in ("http", "http2"):
        assert violations(KIND, shape(config, protocol)) == []


WRONG: list[tuple[str, Expected]] = [
    ("{}", [("arn", "in body is required")]),
    ("null", [("arn", "in body is required")]),
    ("[]", [("", 'in body must be of type object: "array"')]),
    ("{arn: 7}", [("arn", 'in body must be of type string: "integer"')]),
    ("{arn: 'arn:aws:s3:::bucket'}", [("arn", NO_ARN)]),
    (f"{{arn: '{ARN}\\n'}}", [("arn", NO_ARN)]),
    (
        f"{{arn: '{ARN}', credentials: aws, invocationMode: Later}}",
        [
            ("invocationMode", "in body should be one of [Synchronous Asynchronous]"),
            ("credentials", 'in body must be of type object: "string"'),
        ],
    ),
    (
        f"{{arn: '{ARN}', credentials: {{secret: '', inlineString: AKID}}}}",
        [
            ("credentials.secret", "in body should be at least 1 chars long"),
            ("credentials.inlineString", 'unknown field "inlineString"; known fields are secret'),
        ],
    ),
    (f"{{arn: '{ARN}', ann: 1}}", [("ann", 'unknown field "ann"; did you mean "arn"?')]),
    *[
        (f"{{arn: '{ARN}', endpoint: '{url}'}}", [("endpoint", NO_URL)])
        for url in (
            "localhost",
            "unix:///run/x",
            "http://",
            "http://a:0",
            "http://u@a",
            "http://a/b",
            "http://a b",
        )
    ],
    (
        f"{{arn: '{ARN}', endpoint: 'http://a', caCert: {{secret: ca}}}}",
        [("caCert", "goes with an endpoint that begins with https://")],
    ),
    (
        "{arn: 'arn:aws-iso:lambda:us-iso-east-1:123456789012:function:f'}",
        [("endpoint", 'must be given, since the endpoint of partition "aws-iso" is not known')],
    ),
]


def below(path: str, expected: Expected) -> Expected:
    return [(f"{path}.{field}" if field else path, message) for field, message in expected]


@pytest.mark.parametrize(("config", "expected"), WRONG)
def test_what_is_wrong_is_told_below_the_configuration(config: str, expected: Expected):
    assert violations(KIND, written(config)) == below(CONFIG, expected)
    assert violations(KIND, released(config)) == below("spec.extension.config", expected)


@pytest.mark.parametrize("protocol", ["tcp", "tls", "grpc"])
def test_a_function_speaks_no_other_protocol(protocol: str):
    message = f'a destination of type "Lambda" takes http, http2, not {protocol}'
    assert violations(KIND, written(f"{{arn: '{ARN}'}}", protocol)) == [("spec.match[0].protocol", message)]
    if protocol != "tls":
        found = violations(KIND, released(f"{{arn: '{ARN}'}}", protocol))
        assert found == [("spec.match.protocol", message)]
    default = f"{{match: {{port: 80}}, extension: {{type: Lambda, config: {{arn: '{ARN}'}}}}}}"
    assert violations(KIND, default)[0][0] == "spec.match.protocol"


def test_any_other_type_is_legal_with_any_configuration():
    for shape in (written, released):
        assert violations(KIND, shape("{anything: [1, {a: b}]}", "tcp", "Queue")) == []


def test_an_asynchronous_call_that_has_a_result_is_warned_about():
    config = f"{{arn: '{ARN}', payloadPassthrough: true, invocationMode: Asynchronous}}"
    (text,) = warnings(KIND, written(config))
    assert text.startswith(f"{CONFIG}: an asynchronous call has no result")


def test_secrets_that_a_plugin_names_are_references_of_the_object():
    config = f"{{arn: '{ARN}', endpoint: 'https://a', credentials: {{secret: aws}}, caCert: {{secret: ca}}}}"
    for shape, path in ((written, CONFIG), (released, "spec.extension.config")):
        found = secret_references.of(mesh_external_service.KIND, yaml.safe_load(shape(config)))
        assert [(ref.path, ref.name) for ref in found] == [
            (f"{path}.credentials.secret", "aws"),
            (f"{path}.caCert.secret", "ca"),
        ]


def test_what_looks_like_a_secret_of_a_plugin_that_is_not_installed_is_one():
    config = "{a: [{b: {secret: aws}}], secretRef: {kind: Secret, name: ca}, secrets: no, c: {secret: 7}}"
    found = secret_references.of(mesh_external_service.KIND, yaml.safe_load(written(config, type_="Queue")))
    assert [(ref.path, ref.name) for ref in found] == [
        (f"{CONFIG}.secretRef.name", "ca"),
        (f"{CONFIG}.a[0].b.secret", "aws"),
    ]


class OtherConfig(Spec):
    """What another plugin is told."""

    text: Annotated[str | None, doc("A text.")] = None
    password: Annotated[SecretText | None, doc("A secret text.")] = None
    key: Annotated[SecretRef | None, doc("A Secret.")] = None


def fail(_config: Any) -> Iterator[Violation]:
    raise ZeroDivisionError("by my own zero")


def of(**parts: Any) -> Any:
    """The kind with another plugin."""
    plugin = DestinationPlugin(
        type="Other", doc="Other.", config=OtherConfig, build=lambda *_: DestinationParts(), **parts
    )
    return mesh_external_service.with_extensions((*mesh_external_service.KIND.extensions, plugin))


def found(kind: Any, spec: str) -> list[tuple[str, str, str]]:
    context = ValidationContext(control_plane=ControlPlaneInfo(), name="x", mesh="default")
    return [(v.field, v.message, v.rule) for v in kind.violations(yaml.safe_load(spec), context)]


def test_a_plugin_of_a_package_judges_its_configuration_and_those_of_others_do_not():
    def validate(config: OtherConfig) -> Iterator[Violation]:
        if config.text == "no":
            yield Violation("text", "must not be no", "own")

    kind = of(validate=validate, protocols=("tcp",))
    assert found(kind, written("{text: 'yes'}", "tcp", "Other")) == []
    assert found(kind, written("{text: 'no'}", "tcp", "Other")) == [
        (f"{CONFIG}.text", "must not be no", "own")
    ]
    assert found(kind, written(f"{{arn: '{ARN}'}}")) == []
    assert [rule for _, _, rule in found(kind, written("{}", "http", "Other"))] == ["destination"]


@pytest.mark.parametrize("answer", [fail, lambda _config: ["text"], lambda _config: 7])
def test_a_plugin_that_fails_refuses_the_object_and_is_named(answer: Any):
    kind = of(validate=answer, origin="package other")
    ((field, message, rule),) = found(kind, written("{}", type_="Other"))
    assert (field, rule) == (CONFIG, "plugin")
    assert 'the plugin of type "Other" cannot judge it: its validate raised ' in message
    assert message.endswith("tell the makers of package other")
    assert found(kind, written(f"{{arn: '{ARN}'}}")) == []


def test_a_plugin_whose_warning_fails_refuses_nothing():
    kind = of(warn=fail)
    context = ValidationContext(control_plane=ControlPlaneInfo(), name="x", mesh="default")
    (text,) = kind.warn(kind.read(yaml.safe_load(written("{}", type_="Other"))), context)
    assert "its warn raised ZeroDivisionError: by my own zero" in text


def test_secret_texts_in_a_plugins_configuration_are_hidden():
    kind = of()
    for shape in (written, released):
        spec = yaml.safe_load(shape("{text: seen, password: hidden}", type_="Other"))
        shown = str(masked(kind.spec, spec, named=kind.named_types))
        assert "seen" in shown
        assert "hidden" not in shown
