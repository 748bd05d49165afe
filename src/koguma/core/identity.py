"""Identity: the key and the core name of an object, which follow from how it was written.

The plain form addresses objects by core name, the Kubernetes form by namespace and name; both lead to one
key, which is the KRI without its section.
"""

import msgspec

from koguma.model import labels
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.forms import NO_NAMESPACE_PREFIX, Draft, Form, reserved_namespace
from koguma.model.kind import Kind
from koguma.model.resource import Key

DEFAULT_MESH = "default"
DEFAULT_NAMESPACE = "default"


class Identity(msgspec.Struct, frozen=True):
    """Where an object is stored and by which core name the plain form finds it."""

    key: Key
    core_name: str


def of(draft: Draft, control_plane: ControlPlaneInfo) -> Identity:
    """The identity of a draft."""
    kind = draft.kind
    mesh = (draft.mesh or DEFAULT_MESH) if kind.is_mesh_scoped else ""
    # Objects on Global have no zone, also if they were exported from one and still have its label.
    written = "" if control_plane.is_global else draft.labels.get(labels.ZONE)
    zone = written or local_zone(kind, control_plane)
    if draft.form is Form.KUBERNETES:
        namespace = _kubernetes_namespace(draft, mesh)
        core_name = f"{draft.name}.{namespace}" if namespace else draft.name
        return Identity(Key(kind.name, mesh, zone, namespace, draft.name), core_name)
    namespace = draft.labels.get(labels.NAMESPACE, "") if kind.namespaced else ""
    # The core name of a namespaced object ends with `.<namespace>`; a name without that is taken as it is.
    name = draft.name.removesuffix(f".{namespace}") if namespace else draft.name
    return Identity(Key(kind.name, mesh, zone, namespace, name), draft.name)


def local_zone(kind: Kind, control_plane: ControlPlaneInfo) -> str:
    """The zone in keys of objects written here: only kinds that zones own have one."""
    return "" if control_plane.is_global or not kind.sync.provided_by_zone else control_plane.zone


def _kubernetes_namespace(draft: Draft, mesh: str) -> str:
    if not draft.kind.namespaced:
        return ""
    written = draft.namespace or DEFAULT_NAMESPACE
    return "" if written == reserved_namespace(mesh) else written


def is_reserved(namespace: str) -> bool:
    """Whether users may not create this namespace, since it stands for no namespace."""
    return namespace.startswith(NO_NAMESPACE_PREFIX)
