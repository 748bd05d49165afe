"""MeshExternalServices for tests, in both shapes, and how they are called."""

import base64

import msgspec

from koguma.core import admission, pipeline, world
from koguma.core.build import encoding, external
from koguma.envoy import schema
from koguma.envoy.encode import Encoder
from koguma.kinds import KINDS as ALL
from koguma.model import forms
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kinds

ENVOY = schema.find_envoy()
ENCODER = Encoder(schema.load(ENVOY))
KINDS = Kinds(ALL)
CONTROL_PLANE = ControlPlaneInfo(zone="east")

VIP = {"type": "InternalVIP", "value": "a.ext.svc.local", "port": 80, "protocol": "http"}
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN EC PRIVATE KEY-----\nMHcC\n-----END EC PRIVATE KEY-----\n"
WHERE = [{"address": "1.1.1.1"}]
AT = "spec.destination"


def base64_of(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def load(spec, name="out", **secrets):
    """A mesh with one service and these secrets; a spec that is refused now may be stored since before."""
    documents = [{"type": "MeshExternalService", "name": name, "mesh": "default", "spec": regular()}]
    documents += [
        {"type": "Secret", "name": secret, "mesh": "default", "data": base64_of(text)}
        for secret, text in secrets.items()
    ]
    admitted = [
        admission.admitted(forms.read(each, KINDS), None, CONTROL_PLANE).resource for each in documents
    ]
    admitted[0] = msgspec.structs.replace(admitted[0], spec=spec)
    db = pipeline.load(KINDS, CONTROL_PLANE, admitted)
    db.set(encoding.ENCODER, "envoy", ENCODER)
    return db


def key_of(db):
    (key,) = world.BY_KIND.keys(db, ("MeshExternalService", "default"))
    return key


def built(spec, section="80", name="out", **secrets):
    """How a port of a service is called."""
    db = load(spec, name, **secrets)
    return external.of(db, key_of(db), section)


def regular(tls=None, *, match=VIP, endpoints=WHERE):
    """A service in the shape in which it was first written."""
    destination = {"type": "Regular", "endpoints": endpoints, **({"tls": tls} if tls else {})}
    return {"match": [match], "destination": destination}


def released(tls=None, *, endpoints=None, **match):
    """The same in the shape that Kuma released."""
    endpoints = endpoints or [{"address": "1.1.1.1", "port": 80}]
    return {"match": {"port": 80, **match}, "endpoints": endpoints, **({"tls": tls} if tls else {})}


def tls(**verification):
    return {"enabled": True, "verification": verification}
