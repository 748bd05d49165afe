"""Types of a CustomResourceDefinition: names, versions, conversion, and its status."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from koguma.kube.kinds import parts
from koguma.kube.kinds.parts import Int32
from koguma.model.schema import Spec, doc

_OPEN: Final = msgspec.Meta(
    extra_json_schema={"type": "object", "x-kubernetes-preserve-unknown-fields": True}
)


class DefinitionNames(Spec):
    """How objects of the kind are called."""

    plural: Annotated[str | None, doc("The word in paths: /apis/<group>/<version>/.../<plural>.")] = None
    singular: Annotated[str | None, doc("The name of one; the kind in lower case by default.")] = None
    short_names: Annotated[tuple[str, ...] | None, doc("Shorter words for command lines.")] = None
    kind: Annotated[str | None, doc("The kind that objects name.")] = None
    list_kind: Annotated[str | None, doc("The kind of lists; <kind>List by default.")] = None
    categories: Annotated[tuple[str, ...] | None, doc("Words for several kinds at once, such as all.")] = None


class DefinitionScale(Spec):
    """Where objects say how many replicas they have."""

    spec_replicas_path: Annotated[str | None, doc("JSON path below .spec of the number that is wanted.")] = (
        None
    )
    status_replicas_path: Annotated[
        str | None, doc("JSON path below .status of the number that there is.")
    ] = None
    label_selector_path: Annotated[str | None, doc("JSON path of the selector as text.")] = None


class DefinitionSubresources(Spec):
    """Parts of objects that have paths of their own."""

    status: Annotated[Mapping[str, Any] | None, doc("Present: the status has a path of its own.")] = None
    scale: Annotated[DefinitionScale | None, doc("Present: objects can be scaled.")] = None


class DefinitionColumn(Spec):
    """One column of tables."""

    name: Annotated[str | None, doc("Its heading.")] = None
    type: Annotated[str | None, doc("integer, number, string, boolean or date.")] = None
    format: Annotated[str | None, doc("A format of the type.")] = None
    description: Annotated[str | None, doc("What it shows.")] = None
    priority: Annotated[Int32 | None, doc("Above 0: only in wide tables.")] = None
    json_path: Annotated[str | None, doc("A simple JSON path to its value.")] = None


class DefinitionSelectableField(Spec):
    """One field that field selectors may name."""

    json_path: Annotated[str | None, doc("A simple JSON path to the field.")] = None


class DefinitionSchema(Spec):
    """What the objects of a version look like."""

    open_api_v3_schema: Annotated[
        Mapping[str, Any] | None, doc("A structural schema in OpenAPI v3."), _OPEN
    ] = msgspec.field(name="openAPIV3Schema", default=None)


class DefinitionVersion(Spec):
    """One version in which objects are served."""

    name: Annotated[str | None, doc("Its name, such as v1beta1.")] = None
    served: Annotated[bool | None, doc("Whether it has paths.")] = None
    storage: Annotated[bool | None, doc("Whether objects are stored in it; of one version exactly.")] = None
    deprecated: Annotated[bool | None, doc("Whether its users are warned.")] = None
    deprecation_warning: Annotated[str | None, doc("The words of that warning.")] = None
    schema: Annotated[DefinitionSchema | None, doc("What its objects look like.")] = None
    subresources: Annotated[DefinitionSubresources | None, doc("Parts with paths of their own.")] = None
    additional_printer_columns: Annotated[
        tuple[DefinitionColumn, ...] | None, doc("Columns of tables beside the name.")
    ] = None
    selectable_fields: Annotated[
        tuple[DefinitionSelectableField, ...] | None, doc("What field selectors may name.")
    ] = None


class DefinitionWebhookService(Spec):
    """A service, whose address the operator sets with outgoingServices."""

    namespace: Annotated[str | None, doc("Its namespace.")] = None
    name: Annotated[str | None, doc("Its name.")] = None
    path: Annotated[str | None, doc("The path of requests.")] = None
    port: Annotated[Int32 | None, doc("Its port.")] = None


class DefinitionWebhookClient(Spec):
    """How a webhook is called."""

    url: Annotated[str | None, doc("https://host:port/path.")] = None
    service: Annotated[DefinitionWebhookService | None, doc("A service, in place of a url.")] = None
    ca_bundle: Annotated[
        parts.Bytes | None, doc("Certificates (PEM) that its server's is verified with.")
    ] = None


class DefinitionWebhook(Spec):
    """The server that converts objects."""

    client_config: Annotated[DefinitionWebhookClient | None, doc("How it is called.")] = None
    conversion_review_versions: Annotated[
        tuple[str, ...] | None, doc("Versions of ConversionReview that it reads.")
    ] = None


class DefinitionConversion(Spec):
    """How objects get from one version to another."""

    strategy: Annotated[str | None, doc("None: only apiVersion changes. Webhook: a server converts.")] = None
    webhook: Annotated[DefinitionWebhook | None, doc("The server; with the strategy Webhook.")] = None


class DefinitionSpec(Spec):
    """A kind, its names and its versions."""

    group: Annotated[str | None, doc("The group of its paths, such as example.com.")] = None
    names: Annotated[DefinitionNames | None, doc("What its objects are called.")] = None
    scope: Annotated[str | None, doc("Namespaced or Cluster.")] = None
    versions: Annotated[
        tuple[DefinitionVersion, ...] | None, doc("The versions in which objects are served.")
    ] = None
    conversion: Annotated[DefinitionConversion | None, doc("How versions are converted.")] = None
    preserve_unknown_fields: Annotated[bool | None, doc("Must be false.")] = None


class DefinitionCondition(parts.ObjectCondition):
    """One thing that is true of a definition, or not, and why: NamesAccepted, Established, Terminating."""

    observed_generation: Annotated[int | None, doc("The generation that it is about.")] = None


class DefinitionStatus(Spec):
    """Whether the kind is served, and what is stored of it."""

    conditions: Annotated[
        tuple[DefinitionCondition, ...] | None, doc("Whether it is served."), parts.keyed_by("type")
    ] = None
    accepted_names: Annotated[DefinitionNames | None, doc("The names under which it is served.")] = None
    stored_versions: Annotated[tuple[str, ...] | None, doc("Versions in which objects may be stored.")] = None
    observed_generation: Annotated[int | None, doc("The generation that was looked at last.")] = None
