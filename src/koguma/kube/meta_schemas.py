"""Schemas of what all Kubernetes objects share: metadata, lists, deletion, and the answer `Status`.

Every field of ObjectMeta is here, since a client that checks objects by itself refuses those that the schema
leaves out. How lists are merged stands at the field that holds them.
"""

from collections.abc import Mapping
from typing import Final

from koguma.model.schema import Json

REF: Final = "#/components/schemas/"
PREFIX: Final = "io.k8s.apimachinery.pkg.apis.meta.v1."
OBJECT_META: Final = f"{PREFIX}ObjectMeta"
LIST_META: Final = f"{PREFIX}ListMeta"
DELETE_OPTIONS: Final = f"{PREFIX}DeleteOptions"
STATUS: Final = f"{PREFIX}Status"
PATCH: Final = f"{PREFIX}Patch"
SCALE: Final = "io.k8s.api.autoscaling.v1.Scale"
ANYTHING: Final = "x-kubernetes-preserve-unknown-fields"


def ref(name: str, words: str = "", **more: Json) -> Json:
    """A reference to a definition, with words about the field that holds it."""
    return {"$ref": f"{REF}{name}", **({"description": words} if words else {}), **more}


def text(words: str) -> Json:
    """A field that holds text."""
    return {"type": "string", "description": words}


API_VERSION: Final = text("The group and version of this object's shape.")
KIND: Final = text("The kind of this object.")


def _number(words: str, form: str = "int64") -> Json:
    return {"type": "integer", "format": form, "description": words}


def _flag(words: str) -> Json:
    return {"type": "boolean", "description": words}


def _texts(words: str, merge: str = "atomic") -> Json:
    found = {
        "type": "array",
        "items": {"type": "string"},
        "description": words,
        "x-kubernetes-list-type": merge,
    }
    return {**found, "x-kubernetes-patch-strategy": "merge"} if merge == "set" else found


def _pairs(words: str) -> Json:
    return {"type": "object", "additionalProperties": {"type": "string"}, "description": words}


def _list(name: str, words: str, key: str = "") -> Json:
    found = {"type": "array", "items": ref(f"{PREFIX}{name}"), "description": words}
    if not key:
        return {**found, "x-kubernetes-list-type": "atomic"}
    merged = {"x-kubernetes-patch-merge-key": key, "x-kubernetes-patch-strategy": "merge"}
    return {**found, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key], **merged}


def _object(words: str, properties: Mapping[str, Json], *required: str, **extensions: Json) -> Json:
    named = {f"x-kubernetes-{key.replace('_', '-')}": value for key, value in extensions.items()}
    needs = {"required": list(required)} if required else {}
    return {"type": "object", "description": words, "properties": dict(properties), **needs, **named}


def _kind(name: str) -> list[Json]:
    return [{"group": "", "version": "v1", "kind": name}]


_TIME: Final = f"{PREFIX}Time"

_OBJECT_META: Final = _object(
    "What every stored object carries beside its own fields.",
    {
        "annotations": _pairs("Values for people and tools; nothing is selected by them."),
        "creationTimestamp": ref(_TIME, "When the object was created. Set by the server."),
        "deletionGracePeriodSeconds": _number("How long deletion may take. Set by the server."),
        "deletionTimestamp": ref(
            _TIME,
            "When deletion was asked for; the object stays until it has no finalizers. Set by the server.",
        ),
        "finalizers": _texts("Who still has something to do before the object may be gone.", "set"),
        "generateName": text("The beginning of a name that the server completes if there is no `name`."),
        "generation": _number("Grows with every change of what is asked for. Set by the server."),
        "labels": _pairs("Values by which objects are selected."),
        "managedFields": _list("ManagedFieldsEntry", "Who set which field. Kept by the server."),
        "name": text("The name, unique among objects of a kind in a namespace. It never changes."),
        "namespace": text("The space in which the name is unique; absent for kinds that live in none."),
        "ownerReferences": _list(
            "OwnerReference", "The objects without which this one is deleted too.", "uid"
        ),
        "resourceVersion": text("Names the state that was read; a write that sends it fails on any other."),
        "selfLink": text("An older field that is no longer filled."),
        "uid": text(
            "Tells this object from all others, also from later ones of that name. Set by the server."
        ),
    },
)

_OWNER: Final = _object(
    "An object to which another one belongs.",
    {
        "apiVersion": text("The group and version of the owner."),
        "blockOwnerDeletion": _flag("Whether the owner waits, in a foreground deletion, until this is gone."),
        "controller": _flag("Whether this owner is the one that manages the object."),
        "kind": text("The kind of the owner."),
        "name": text("The name of the owner."),
        "uid": text("The uid of the owner."),
    },
    "apiVersion",
    "kind",
    "name",
    "uid",
    map_type="atomic",
)

_MANAGED: Final = _object(
    "The fields that one manager has set.",
    {
        "apiVersion": text("The version in which the fields are named."),
        "fieldsType": text("How `fieldsV1` is written; always FieldsV1."),
        "fieldsV1": ref(f"{PREFIX}FieldsV1", "The fields, as a tree of their names."),
        "manager": text("The name under which the fields were written."),
        "operation": text("How: Apply or Update."),
        "subresource": text("Through which part of the object; empty for the object itself."),
        "time": ref(_TIME, "When the set of fields changed last."),
    },
)

_LIST_META: Final = _object(
    "What a list carries beside its items.",
    {
        "continue": text("Sent back as `continue`, it leads to the next page; empty on the last one."),
        "remainingItemCount": _number("How many items come after this page, where that is known."),
        "resourceVersion": text("Names the state of the whole list; a watch can go on from it."),
        "selfLink": text("An older field that is no longer filled."),
    },
)

_DELETE_OPTIONS: Final = _object(
    "How to delete.",
    {
        "apiVersion": API_VERSION,
        "dryRun": _texts("All: go through the deletion, and keep the object."),
        "gracePeriodSeconds": _number("How long deletion may take."),
        "ignoreStoreReadErrorWithClusterBreakingPotential": _flag("Delete also what cannot be read."),
        "kind": KIND,
        "orphanDependents": _flag("Older form of propagationPolicy Orphan."),
        "preconditions": ref(f"{PREFIX}Preconditions", "Delete only the object that is meant."),
        "propagationPolicy": text("What happens to owned objects: Background, Foreground or Orphan."),
    },
    group_version_kind=_kind("DeleteOptions"),
)

_PRECONDITIONS: Final = _object(
    "What must hold for a deletion to happen.",
    {"resourceVersion": text("The version to delete."), "uid": text("The uid to delete.")},
)

_STATUS: Final = _object(
    "How a request ended, where the answer is no object.",
    {
        "apiVersion": API_VERSION,
        "code": _number("The HTTP status.", "int32"),
        "details": ref(f"{PREFIX}StatusDetails", "What the message is about."),
        "kind": KIND,
        "message": text("What happened, for people."),
        "metadata": ref(LIST_META, "As in lists."),
        "reason": text("What happened, in one word for programs."),
        "status": text("Success or Failure."),
    },
    group_version_kind=_kind("Status"),
)

_STATUS_DETAILS: Final = _object(
    "What a Status is about.",
    {
        "causes": _list("StatusCause", "Everything that is wrong."),
        "group": text("The group of the object."),
        "kind": text("The kind of the object, or the plural in the path."),
        "name": text("The name of the object."),
        "retryAfterSeconds": _number("When to try again.", "int32"),
        "uid": text("The uid of the object."),
    },
)

_STATUS_CAUSE: Final = _object(
    "One thing that is wrong.",
    {
        "field": text("The field, as in `spec.to[0].default`."),
        "message": text("What is wrong, for people."),
        "reason": text("What is wrong, in one word for programs."),
    },
)

_SCALE: Final = _object(
    "How many replicas an object wants and has.",
    {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": ref(OBJECT_META, "The name of the object."),
        "spec": _object("What is asked for.", {"replicas": _number("The number that is wanted.", "int32")}),
        "status": _object(
            "What there is.",
            {
                "replicas": _number("The number that there is.", "int32"),
                "selector": text("What selects them, as text."),
            },
        ),
    },
    group_version_kind=[{"group": "autoscaling", "version": "v1", "kind": "Scale"}],
)

DEFINITIONS: Final[Mapping[str, Json]] = {
    OBJECT_META: _OBJECT_META,
    LIST_META: _LIST_META,
    DELETE_OPTIONS: _DELETE_OPTIONS,
    STATUS: _STATUS,
    SCALE: _SCALE,
    PATCH: {
        "type": "object",
        "description": "A change of an object; the content type says how it is written.",
    },
    _TIME: {"type": "string", "format": "date-time", "description": "A moment, as RFC 3339 writes it."},
    f"{PREFIX}FieldsV1": {"type": "object", "description": "Names of fields, as a tree.", ANYTHING: True},
    f"{PREFIX}ManagedFieldsEntry": _MANAGED,
    f"{PREFIX}OwnerReference": _OWNER,
    f"{PREFIX}Preconditions": _PRECONDITIONS,
    f"{PREFIX}StatusCause": _STATUS_CAUSE,
    f"{PREFIX}StatusDetails": _STATUS_DETAILS,
}
