"""How strictly a proxy asks for TLS: the mode, the versions and the ciphers of inbound traffic.

MeshTLS acts on proxies that have a certificate. `Strict`, the default, takes mTLS only; `Permissive` also
takes plain text, which is how a service moves into the mesh without an interruption. Versions and ciphers
are for the whole mesh, since both ends of a connection have to agree on them.

```yaml
type: MeshTLS
name: move-backend-in
mesh: default
spec:
  targetRef: {kind: Dataplane, labels: {app: backend}}
  rules:
    - default: {mode: Permissive}
```
"""

from collections.abc import Callable, Iterator
from typing import Annotated, Final, Literal

import msgspec

from koguma.envoy.proto_json import Data
from koguma.model import columns, target_ref
from koguma.model.kind import POLICY, Kind, Policy, ValidationContext
from koguma.model.overlay import InboundEntry, Overlay, OverlayContext, PolicyHooks
from koguma.model.phase import Phase
from koguma.model.schema import Json, Spec, doc
from koguma.model.target_ref import TargetRef
from koguma.model.violation import Violation, child, item
from koguma.policies.parts import fields, spelling

TlsVersionName = Literal["TLSAuto", "TLS10", "TLS11", "TLS12", "TLS13"]
Cipher = Literal[
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-RSA-CHACHA20-POLY1305",
]


class TlsVersions(Spec):
    """A range of TLS versions."""

    min: Annotated[TlsVersionName | None, doc("The oldest version; Envoy's own choice by default.")] = None
    max: Annotated[TlsVersionName | None, doc("The newest version; Envoy's own choice by default.")] = None


class TlsConf(Spec):
    """What a proxy asks of those who call it."""

    mode: Annotated[
        Literal["Strict", "Permissive"] | None, doc("mTLS only, or plain text too; Strict by default.")
    ] = None
    tls_version: Annotated[TlsVersions | None, doc("The versions in use.")] = None
    tls_ciphers: Annotated[tuple[Cipher, ...] | None, doc("The ciphers in use.")] = None


class TlsFrom(Spec):
    """What is asked of some clients; `rules` is the newer form."""

    target_ref: Annotated[TargetRef, doc("The clients; only kind Mesh.")]
    default: Annotated[TlsConf, doc("What is asked of them.")] = TlsConf()


class TlsRule(Spec):
    """What is asked of calls that arrive."""

    default: Annotated[TlsConf, doc("What is asked of them.")] = TlsConf()


class MeshTLSSpec(Spec):
    """Which proxies, and how strictly they ask for TLS."""

    target_ref: Annotated[
        TargetRef | None, doc("The proxies that this acts on; all of the mesh by default.")
    ] = None
    from_: Annotated[tuple[TlsFrom, ...], doc("Inbound traffic, older form.")] = msgspec.field(
        name="from", default=()
    )
    rules: Annotated[tuple[TlsRule, ...], doc("Inbound traffic.")] = ()


_PROXIES = ("Mesh", "Dataplane", "MeshSubset")
_AGE = ("TLS10", "TLS11", "TLS12", "TLS13")


def validate(spec: MeshTLSSpec, _context: ValidationContext) -> Iterator[Violation]:
    """What Kuma refuses, with its messages."""
    top = spec.target_ref or target_ref.MESH
    inbound = bool(spec.from_ or spec.rules)
    yield from target_ref.violations(top, "spec.targetRef", _PROXIES, sections=inbound)
    if spec.from_ and spec.rules:
        yield Violation("spec", fields.FROM_BESIDE_RULES, "exclusive")
    conf = _conf_of(whole_mesh=top.kind == "Mesh")
    yield from fields.entries("spec.from", spec.from_, ("Mesh",), conf)
    for index, rule in enumerate(spec.rules):
        yield from conf(rule.default, child(item("spec.rules", index), "default"))


def _conf_of(*, whole_mesh: bool) -> Callable[[TlsConf, str], Iterator[Violation]]:
    def check(conf: TlsConf, path: str) -> Iterator[Violation]:
        for name, value in (("tlsVersion", conf.tls_version), ("tlsCiphers", conf.tls_ciphers)):
            if value and not whole_mesh:
                message = f"{name} can only be defined with top level targetRef kind: Mesh"
                yield Violation(child(path, name), message, "forbidden")
        if conf.tls_version is not None and whole_mesh:
            yield from _versions(conf.tls_version, child(path, "tlsVersion"))

    return check


def _versions(versions: TlsVersions, path: str) -> Iterator[Violation]:
    both = versions.min in _AGE and versions.max in _AGE
    if both and _AGE.index(versions.min or "") > _AGE.index(versions.max or ""):
        yield Violation(child(path, "min"), "min version must be lower than max", "range")


def warn(spec: MeshTLSSpec, _context: ValidationContext) -> Iterator[str]:
    """Deprecations."""
    yield from target_ref.warnings(spec.target_ref)
    if spec.from_:
        yield fields.FROM_IS_DEPRECATED


_VERSIONS: Final = {
    "TLSAuto": "TLS_AUTO",
    "TLS10": "TLSv1_0",
    "TLS11": "TLSv1_1",
    "TLS12": "TLSv1_2",
    "TLS13": "TLSv1_3",
}
# Nothing that a user may name exists in these versions.
_OLD: Final = ("TLS10", "TLS11")
_OLD_CIPHERS: Final = (
    "ECDHE-ECDSA-AES128-SHA",
    "ECDHE-ECDSA-AES256-SHA",
    "ECDHE-RSA-AES128-SHA",
    "ECDHE-RSA-AES256-SHA",
)


def inbound(conf: Json, _ruled: tuple[InboundEntry, ...], _where: OverlayContext) -> Overlay:
    """The shape of inbounds, and what both ends of a connection between proxies agree on."""
    overlay: Data = {}
    if conf.get("mode"):
        overlay["inbound"] = {"mode": conf["mode"]}
    parameters = _parameters(conf)
    if parameters:
        overlay["tls"] = overlay["upstream_tls"] = {"common_tls_context": {"tls_params": parameters}}
    return overlay


def _parameters(conf: Json) -> Data:
    versions = conf.get("tlsVersion") or {}
    oldest, newest = versions.get("min") or "TLSAuto", versions.get("max") or "TLSAuto"
    parameters: Data = {}
    if versions:
        parameters = _range(oldest, newest)
    ciphers = [*(conf.get("tlsCiphers") or ()), *(_OLD_CIPHERS if newest in _OLD else ())]
    if ciphers:
        parameters["cipher_suites"] = ciphers
    return parameters


def _range(oldest: str, newest: str) -> Data:
    """A range that both ends can meet, also where two policies have each set one end of it."""
    if newest == "TLSAuto":
        newest = "TLS13"  # Envoy's own choice as a client ends at 1.2
    if newest in _OLD and oldest == "TLSAuto":
        oldest = newest  # Envoy's own choice begins at 1.2
    if oldest in _AGE and _AGE.index(oldest) > _AGE.index(newest):
        newest = oldest
    return {
        "tls_minimum_protocol_version": _VERSIONS[oldest],
        "tls_maximum_protocol_version": _VERSIONS[newest],
    }


KIND = Kind(
    name="MeshTLS",
    plural="meshtlses",
    short="mtls",
    doc=__doc__,
    spec=MeshTLSSpec,
    columns=columns.INBOUND,
    sync=POLICY,
    policy=Policy(
        phase=Phase.TLS,
        has_from=True,
        has_rules=True,
        from_as_rules=True,
        hooks=PolicyHooks(inbound=inbound, both_ends=True),
    ),
    clean=spelling.refs,
    v1=spelling.RULES,
    validate=validate,
    warn=warn,
    display=("Mesh TLS", "Mesh TLSes"),
)
