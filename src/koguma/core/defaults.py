"""Defaults: the objects that are created with a new mesh, and with a new control plane, as in Kuma 2.13."""

from collections.abc import Iterable, Iterator, Mapping

from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kind
from koguma.model.schema import Json


def is_untouched(kind: Kind, mesh: str, name: str, spec: Json) -> bool:
    """Whether a policy is a default policy of its mesh, unchanged."""
    defaults = kind.policy.mesh_defaults if kind.policy else ()
    return any(name == f"{each.prefix}-{mesh}" and spec == each.spec for each in defaults)


def mesh_policies(kinds: Iterable[Kind], mesh: str, spec: Json) -> Iterator[Mapping[str, Json]]:
    """The default policies of a new mesh, as plain documents, without those that its spec skips."""
    skipped = set(spec.get("skipCreatingInitialPolicies") or ())
    if "*" in skipped:
        return
    by_phase = [(kind.policy.phase, kind.name, kind.policy) for kind in kinds if kind.policy is not None]
    for _, kind, policy in sorted(by_phase, key=lambda each: each[:2]):
        for each in policy.mesh_defaults if kind not in skipped else ():
            yield {"type": kind, "mesh": mesh, "name": f"{each.prefix}-{mesh}", "spec": each.spec}


def _generator(name: str, selects: str, match_labels: Mapping[str, str], template: str) -> Mapping[str, Json]:
    spec = {"selector": {selects: {"matchLabels": dict(match_labels)}}, "template": template}
    return {"type": "HostnameGenerator", "name": name, "spec": spec}


def hostname_generators(control_plane: ControlPlaneInfo) -> Iterator[Mapping[str, Json]]:
    """The default HostnameGenerators: for local services in a zone, for synced ones on Global."""
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
