"""Stored destinations and generators of a mesh `shop`, for tests of what is reported on them."""

from koguma.core import pipeline
from koguma.kinds import KINDS
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kinds
from koguma.policies import POLICIES
from tests import build

HERE = ControlPlaneInfo(zone="east")
ALL = Kinds((*KINDS, *POLICIES))


def stored(kind, name, spec, *, mesh="shop", labels=None, created=0, status=None, **more):
    """An object; `created` counts seconds, so that a greater one is younger."""
    document = build.document(kind, name, mesh, spec=spec, labels=labels or {}, status=status)
    return build.resource(document, creation_time=f"2026-01-01T00:00:{created:02}Z", **more)


def stored_mesh(name="shop", **spec):
    return build.resource(build.mesh(name, **spec))


def stored_service(name, *vips, ports=(80,), status=None, **more):
    spec = build.mesh_service(name, *map(build.port, ports))["spec"]
    return stored("MeshService", name, spec, status=_with_vips(vips) if status is None else status, **more)


def stored_external(name, *hostnames, status=None, **more):
    """With host names: a list of matches of type InternalVIP; without: the one match that Kuma released."""
    spec = {"match": {"type": "HostnameGenerator", "port": 443, "protocol": "tcp"}}
    if hostnames:
        spec["match"] = [internal_vip(hostname) for hostname in hostnames]
    return stored("MeshExternalService", name, spec, status=status, **more)


def internal_vip(hostname, port=443, kind="InternalVIP"):
    """A match of a MeshExternalService."""
    protocol = "tls" if kind == "Domain" else "tcp"
    return {"type": kind, "value": hostname, "port": port, "protocol": protocol}


def stored_multi_zone(name, *vips, matches=None, **more):
    labels = matches or {"kuma.io/display-name": name}
    spec = build.multi_zone_service(name, {"port": 80}, labels=labels)["spec"]
    more = {"zone": "", "labels": {"kuma.io/origin": "global"}, **more}
    return stored("MeshMultiZoneService", name, spec, status=_with_vips(vips), **more)


def stored_generator(name, template, selects="meshService", *, matches=None, origin="zone", **more):
    spec = {"selector": {selects: {"matchLabels": matches or {}}}, "template": template}
    spec |= more.pop("spec", {})
    more = {"labels": {"kuma.io/origin": origin}, "zone": "east" if origin == "zone" else "", **more}
    return stored("HostnameGenerator", name, spec, mesh="", **more)


def stored_dataplane(name, service, *, mesh="shop", zone="east", **inbound):
    inbounds = [build.inbound(service, **{"port": 8080, "protocol": "", **inbound})]
    return build.resource(build.dataplane(name, mesh=mesh, inbound=inbounds), zone=zone)


def database(*resources, control_plane=HERE, mode="Exclusive"):
    """A mesh; in mode Exclusive the names of service tags are not in the way of other names."""
    in_mesh = stored_mesh(meshServices={"mode": mode} if mode else {})
    return pipeline.load(ALL, control_plane, [in_mesh, *resources])


def _with_vips(vips):
    return {"vips": [{"ip": vip} for vip in vips]} if vips else None
