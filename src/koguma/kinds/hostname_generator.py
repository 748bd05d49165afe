"""Gives services their host names, from a template.

A HostnameGenerator selects services of one kind by their labels. Each of them gets the name that the
template makes of its properties, and the proxies' DNS answers that name with the service's virtual
address. `kuma.io/origin` and `kuma.io/zone` are labels too, so that local and remote services can be
named differently. Only the mesh operator writes these, in the system namespace.

The template knows `{{ .Name }}`, `{{ .DisplayName }}`, `{{ .Namespace }}`, `{{ .Mesh }}`, `{{ .Zone }}` and
`{{ label "key" }}`. A service without the label gets no name, and its status says so.

```yaml
type: HostnameGenerator
name: by-team
spec:
  selector:
    meshService:
      matchLabels: {kuma.io/origin: zone}
  template: '{{ .DisplayName }}.{{ label "team" }}.mesh.local'
```
"""

from collections.abc import Iterator
from typing import Annotated, Final

from koguma.kinds import rules
from koguma.kinds.rules import LabelSelector
from koguma.model import columns, names, template
from koguma.model.kind import BOTH_WAYS, Kind, Scope, ValidationContext
from koguma.model.schema import Json, Spec, doc
from koguma.model.violation import Violation

FIELDS: Final = template.HOSTNAME_FIELDS


class HostnameGeneratorSelector(Spec):
    """The services that get a name: exactly one of these."""

    mesh_service: Annotated[LabelSelector | None, doc("MeshServices.")] = None
    mesh_external_service: Annotated[LabelSelector | None, doc("MeshExternalServices.")] = None
    mesh_multi_zone_service: Annotated[LabelSelector | None, doc("MeshMultiZoneServices.")] = None


class HostnameGeneratorExtension(Spec):
    """A plugin that makes the names instead."""

    type: Annotated[str, doc("Which plugin.")]
    config: Annotated[Json, doc("What the plugin is told.")] = None


class HostnameGeneratorSpec(Spec):
    """Which services, and the shape of their names."""

    selector: Annotated[HostnameGeneratorSelector | None, doc("The services that get a name.")] = None
    template: Annotated[str | None, doc("The name, with properties of the service filled in.")] = None
    extension: Annotated[HostnameGeneratorExtension | None, doc("A plugin that makes the names instead.")] = (
        None
    )


def validate(spec: HostnameGeneratorSpec, _context: ValidationContext) -> Iterator[Violation]:
    """What Kuma refuses, with its messages."""
    selector = spec.selector or HostnameGeneratorSelector()
    chosen = (selector.mesh_service, selector.mesh_external_service, selector.mesh_multi_zone_service)
    if sum(each is not None for each in chosen) != 1:
        message = "exact one selector (meshService, meshExternalService) must be defined"
        yield Violation("spec.selector", message, "exclusive")
    if not spec.template:
        yield Violation("spec.template", rules.NOT_EMPTY_MESSAGE, "required")
    else:
        try:
            template.parse(spec.template, FIELDS)
        except template.TemplateError as error:
            yield Violation("spec.template", f"couldn't parse template: {error}", "template")
    if spec.extension is not None and not spec.extension.type:
        yield Violation("spec.extension.type", rules.NOT_EMPTY_MESSAGE, "required")


def warn(spec: HostnameGeneratorSpec, _context: ValidationContext) -> Iterator[str]:
    """A template that can give no host name, whatever the service is called."""
    parsed = template.parse(spec.template or "", FIELDS)
    keys = [piece.key for piece in parsed.pieces if isinstance(piece, template.Label)]
    hostname = template.render(parsed, dict.fromkeys(FIELDS, "x"), dict.fromkeys(keys, "x"))
    if not names.is_subdomain(hostname):
        yield f'spec.template gives names such as "{hostname}", which are no host names'


KIND = Kind(
    name="HostnameGenerator",
    plural="hostnamegenerators",
    short="hg",
    doc=__doc__,
    spec=HostnameGeneratorSpec,
    columns=columns.HOSTNAME_GENERATOR,
    scope=Scope.GLOBAL,
    sync=BOTH_WAYS,
    system_namespace_only=True,
    validate=validate,
    warn=warn,
)
