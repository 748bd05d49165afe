"""Defaults: the objects that come with a new mesh, and with a new control plane, as Kuma 2.13 makes them."""

from collections.abc import Iterable, Iterator, Mapping

from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kind
from koguma.model.schema import Json


def is_untouched(kind: Kind, mesh: str, name: str, spec: Json) -> bool:
    """Whether a policy is one that came with its mesh and that nobody changed."""
    known = kind.policy.mesh_defaults if kind.policy else ()
    return any(name == f"{each.prefix}-{mesh}" and spec == each.spec for each in known)


def mesh_policies(kinds: Iterable[Kind], mesh: str, spec: Json) -> Iterator[Mapping[str, Json]]:
    """The policies of a new mesh, as plain documents, less those that it asks to skip."""
    skipped = set(spec.get("skipCreatingInitialPolicies") or ())
    if "*" in skipped:
        return
    found = [(kind.policy.phase, kind.name, kind.policy) for kind in kinds if kind.policy is not None]
    for _, kind, policy in sorted(found, key=lambda each: each[:2]):
        for each in policy.mesh_defaults if kind not in skipped else ():
            yield {"type": kind, "mesh": mesh, "name": f"{each.prefix}-{mesh}", "spec": each.spec}


def _generator(name: str, selects: str, wanted: Mapping[str, str], template: str) -> Mapping[str, Json]:
    spec = {"selector": {selects: {"matchLabels": dict(wanted)}}, "template": template}
    return {"type": "HostnameGenerator", "name": name, "spec": spec}


def hostname_generators(control_plane: ControlPlaneInfo) -> Iterator[Mapping[str, Json]]:
    """Host names for services: the local ones in a zone, the synced ones from Global."""
    if not control_plane.is_global:
        origin = {"kuma.io/origin": "zone"}
        local = {**origin, "kuma.io/env": "universal"}
        yield _generator(
            "local-universal-mesh-service", "meshService", local, "{{ .DisplayName }}.svc.mesh.local"
        )
        yield _generator(
            "local-mesh-external-service",
            "meshExternalService",
            origin,
            "{{ .DisplayName }}.extsvc.mesh.local",
        )
        return
    synced = {"kuma.io/origin": "global"}
    kube = {**synced, "kuma.io/env": "kubernetes"}
    headless = "k8s.kuma.io/is-headless-service"
    in_zone = "{{ .Namespace }}.svc.{{ .Zone }}.mesh.local"
    yield _generator(
        "synced-kube-mesh-service",
        "meshService",
        {**kube, headless: "false"},
        "{{ .DisplayName }}." + in_zone,
    )
    yield _generator(
        "synced-headless-kube-mesh-service",
        "meshService",
        {**kube, headless: "true"},
        '{{ label "statefulset.kubernetes.io/pod-name" }}.{{ label "k8s.kuma.io/service-name" }}.' + in_zone,
    )
    yield _generator(
        "synced-universal-mesh-service",
        "meshService",
        {**synced, "kuma.io/env": "universal"},
        "{{ .DisplayName }}.svc.{{ .Zone }}.mesh.local",
    )
    yield _generator(
        "synced-mesh-multi-zone-service",
        "meshMultiZoneService",
        synced,
        "{{ .DisplayName }}.mzsvc.mesh.local",
    )
    yield _generator(
        "synced-mesh-external-service",
        "meshExternalService",
        synced,
        "{{ .DisplayName }}.extsvc.mesh.local",
    )
