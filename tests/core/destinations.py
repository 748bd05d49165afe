"""Stored destinations and generators, written in few words, for tests of what is reported on them."""

from koguma.core import pipeline
from koguma.kinds import KINDS
from koguma.model.kind import Kinds
from koguma.model.place import Place
from koguma.model.resource import Resource
from koguma.policies import POLICIES

HERE = Place(zone="east")
ALL = Kinds((*KINDS, *POLICIES))


def stored(kind, name, spec, *, mesh="shop", zone="east", labels=None, created=0, **more):
    """An object; `created` counts seconds, so that a greater one is younger."""
    namespace = more.pop("namespace", "")
    return Resource(
        kind=kind,
        mesh=mesh,
        zone=zone,
        namespace=namespace,
        name=name,
        core_name=more.pop("core_name", f"{name}.{namespace}" if namespace else name),
        labels={"kuma.io/origin": "zone", **(labels or {})},
        spec=spec,
        creation_time=f"2026-01-01T00:00:{created:02}Z",
        **more,
    )


def mesh(name="shop", **spec):
    return Resource(kind="Mesh", name=name, core_name=name, spec=spec)


def service(name, *vips, ports=(80,), status=None, **more):
    spec = {
        "selector": {"dataplaneTags": {"kuma.io/service": name}},
        "ports": [{"port": port, "appProtocol": "http"} for port in ports],
    }
    listed = {"vips": [{"ip": vip} for vip in vips]} if vips else None
    return stored("MeshService", name, spec, status=listed if status is None else status, **more)


def external(name, *hostnames, status=None, **more):
    """With host names: a list of matches of type InternalVIP; without: the one match that Kuma released."""
    spec = {"match": {"type": "HostnameGenerator", "port": 443, "protocol": "tcp"}}
    if hostnames:
        spec["match"] = [internal(each) for each in hostnames]
    return stored("MeshExternalService", name, spec, status=status, **more)


def internal(hostname, port=443, kind="InternalVIP"):
    return {"type": kind, "value": hostname, "port": port, "protocol": "tcp"}


def multi_zone(name, *vips, matches=None, **more):
    spec = {"selector": {"meshService": {"matchLabels": matches or {"kuma.io/display-name": name}}}}
    listed = {"vips": [{"ip": vip} for vip in vips]} if vips else None
    more = {"zone": "", "labels": {"kuma.io/origin": "global"}, **more}
    return stored("MeshMultiZoneService", name, {**spec, "ports": [{"port": 80}]}, status=listed, **more)


def generator(name, template, selects="meshService", *, matches=None, origin="zone", **more):
    spec = {"selector": {selects: {"matchLabels": matches or {}}}, "template": template}
    spec |= more.pop("spec", {})
    more = {"labels": {"kuma.io/origin": origin}, "zone": "east" if origin == "zone" else "", **more}
    return stored("HostnameGenerator", name, spec, mesh="", **more)


def dataplane(name, service, *, port=8080, tags=None, mesh="shop", zone="east", **inbound):
    own = {"kuma.io/service": service, **(tags or {})}
    networking = {"address": "10.0.0.1", "inbound": [{"port": port, "tags": own, **inbound}]}
    return stored("Dataplane", name, {"networking": networking}, mesh=mesh, zone=zone)


def database(*resources, place=HERE, mode="Exclusive"):
    """A mesh; in mode Exclusive the names of service tags are not in the way of other names."""
    return pipeline.load(ALL, place, [mesh(meshServices={"mode": mode} if mode else {}), *resources])
