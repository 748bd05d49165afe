"""Who the proxies are: their SPIFFE identities, and who issues the certificates for them.

A MeshIdentity selects proxies by labels and gives each an identity made of a trust domain and a path, both
templates. With provider `Bundled` the control plane issues the certificates, from a CA that it makes itself
(`autogenerate`) or from yours (`ca`); with `Spire`, a SPIRE agent beside the proxy does; with `Extension`, a
plugin. Without a provider, identities are named but no certificates are issued, which prepares a change of
provider. Where several select one proxy, the most labels win.

An empty selector selects all proxies; none selects none. A MeshTrust is made of the CA, so that others
believe it.

```yaml
type: MeshIdentity
name: identity
mesh: default
spec:
  selector: {dataplane: {matchLabels: {}}}
  spiffeID:
    trustDomain: '{{ .Mesh }}.{{ .Zone }}.mesh.local'
    path: '/workload/{{ .Workload }}'
  provider:
    type: Bundled
    bundled:
      autogenerate: {enabled: true}
      certificateParameters: {expiry: 24h}
```
"""

from collections.abc import Collection, Iterator
from typing import Annotated, Final, Literal

import msgspec

from koguma.kinds import data_source, rules
from koguma.kinds.data_source import SecureDataSource
from koguma.kinds.rules import LabelSelector
from koguma.model import columns, template
from koguma.model.condition import Condition
from koguma.model.kind import BOTH_WAYS, Kind, ValidationContext
from koguma.model.schema import Duration, Json, Spec, doc, keyed_by
from koguma.model.violation import Violation, child

TRUST_DOMAIN_FIELDS: Final = ("Mesh", "Zone")
PATH_FIELDS: Final = ("Mesh", "Zone", "Namespace", "ServiceAccount", "Workload")


class MeshIdentitySelector(Spec):
    """The proxies that get an identity."""

    dataplane: Annotated[LabelSelector | None, doc("Proxies by labels; all where it is empty.")] = None


class MeshIdentitySpiffeId(Spec):
    """How an identity is written."""

    trust_domain: Annotated[
        str | None, doc("Template of the trust domain; {{ .Mesh }}.{{ .Zone }}.mesh.local by default.")
    ] = None
    path: Annotated[str | None, doc("Template of the path; /workload/{{ .Workload }} by default.")] = None


class MeshIdentityAutogenerate(Spec):
    """A CA that the control plane makes."""

    enabled: Annotated[bool | None, doc("Whether it makes one.")] = None


class MeshIdentityCa(Spec):
    """A CA of your own."""

    certificate: Annotated[SecureDataSource | None, doc("Its certificate.")] = None
    private_key: Annotated[SecureDataSource | None, doc("Its private key.")] = None


class MeshIdentityCertificate(Spec):
    """The certificates that are issued."""

    expiry: Annotated[Duration | None, doc("How long one is valid; 5 days by default.")] = None


class MeshIdentityBundled(Spec):
    """The control plane issues the certificates."""

    mesh_trust_creation: Annotated[
        Literal["Enabled", "Disabled"] | None, doc("Whether a MeshTrust is made of the CA; it is by default.")
    ] = None
    insecure_allow_self_signed: Annotated[bool | None, doc("Accept a CA that signed itself.")] = None
    autogenerate: Annotated[MeshIdentityAutogenerate | None, doc("A CA that the control plane makes.")] = None
    ca: Annotated[MeshIdentityCa | None, doc("A CA of your own.")] = None
    certificate_parameters: Annotated[
        MeshIdentityCertificate | None, doc("The certificates that are issued.")
    ] = None


class MeshIdentitySpireAgent(Spec):
    """The agent beside the proxy."""

    timeout: Annotated[Duration | None, doc("How long it may take to answer; 1 second by default.")] = None


class MeshIdentitySpire(Spec):
    """SPIRE issues the certificates."""

    agent: Annotated[MeshIdentitySpireAgent | None, doc("The agent beside the proxy.")] = None


class MeshIdentityExtension(Spec):
    """A plugin issues the certificates."""

    name: Annotated[str, doc("Which plugin.")]
    config: Annotated[Json, doc("What the plugin is told.")] = None


class MeshIdentityProvider(Spec):
    """Who issues the certificates."""

    type: Annotated[Literal["Bundled", "Spire", "Extension"], doc("Which of the sections counts.")]
    bundled: Annotated[MeshIdentityBundled | None, doc("With type Bundled.")] = None
    spire: Annotated[MeshIdentitySpire | None, doc("With type Spire.")] = None
    extension: Annotated[MeshIdentityExtension | None, doc("With type Extension.")] = None


class MeshIdentitySpec(Spec):
    """Which proxies, who they are, and who says so."""

    selector: Annotated[MeshIdentitySelector | None, doc("The proxies; none without it.")] = None
    spiffe_id: Annotated[MeshIdentitySpiffeId | None, doc("How an identity is written.")] = msgspec.field(
        name="spiffeID", default=None
    )
    provider: Annotated[MeshIdentityProvider | None, doc("Who issues the certificates.")] = None


class MeshIdentityStatus(Spec):
    """How far the control plane has come."""

    conditions: Annotated[tuple[Condition, ...] | None, doc("What is ready."), keyed_by("type")] = None


def validate(spec: MeshIdentitySpec, _context: ValidationContext) -> Iterator[Violation]:
    """What Kuma refuses, with its messages."""
    spiffe = spec.spiffe_id or MeshIdentitySpiffeId()
    yield from _template_violations(spiffe.trust_domain, TRUST_DOMAIN_FIELDS, "spec.spiffeID.trustDomain")
    yield from _template_violations(spiffe.path, PATH_FIELDS, "spec.spiffeID.path")
    if spec.provider is not None:
        yield from _provider_violations(spec.provider)


def _template_violations(text: str | None, fields: Collection[str], path: str) -> Iterator[Violation]:
    try:
        template.parse(text or "", fields)
    except template.TemplateError as error:
        yield Violation(path, f"couldn't parse template: {error}", "template")


def _provider_violations(provider: MeshIdentityProvider) -> Iterator[Violation]:
    missing = "configuration needs to be defined"
    match provider:
        case MeshIdentityProvider(type="Bundled", bundled=MeshIdentityBundled() as bundled):
            yield from _bundled_violations(bundled)
        case MeshIdentityProvider(type="Spire", spire=MeshIdentitySpire(agent=agent)):
            timeout = agent.timeout if agent else None
            yield from rules.not_negative(timeout, "spec.provider.spire.agent.timeout")
        case MeshIdentityProvider(type="Extension", extension=MeshIdentityExtension(name=name)):
            if not name:
                yield Violation("spec.provider.extension.name", rules.NOT_EMPTY_MESSAGE, "required")
        case _:
            yield Violation(f"spec.provider.{provider.type.lower()}", missing, "required")


def _bundled_violations(bundled: MeshIdentityBundled) -> Iterator[Violation]:
    path = "spec.provider.bundled"
    at = child(path, "ca")
    autogenerated = bundled.autogenerate is not None and bundled.autogenerate.enabled
    if autogenerated and bundled.ca is not None:
        yield Violation(at, "shouldn't be defined once using autogenerated", "exclusive")
    elif not autogenerated and bundled.ca is None:
        yield Violation(at, rules.DEFINED_MESSAGE, "required")
    elif bundled.ca is not None:
        yield from _source_violations(bundled.ca.certificate, child(at, "certificate"))
        yield from _source_violations(bundled.ca.private_key, child(at, "privateKey"))
    expiry = bundled.certificate_parameters.expiry if bundled.certificate_parameters else None
    yield from rules.not_negative(expiry, child(path, "certificateParameters.expiry"))


def _source_violations(source: SecureDataSource | None, path: str) -> Iterator[Violation]:
    if source is None:
        yield Violation(path, rules.DEFINED_MESSAGE, "required")
    else:
        yield from data_source.violations(source, path)


KIND = Kind(
    name="MeshIdentity",
    plural="meshidentities",
    short="mid",
    doc=__doc__,
    spec=MeshIdentitySpec,
    columns=columns.MESH_IDENTITY,
    status=MeshIdentityStatus,
    sync=BOTH_WAYS,
    system_namespace_only=True,
    validate=validate,
    display=("Mesh Identity", "Mesh Identities"),
)
