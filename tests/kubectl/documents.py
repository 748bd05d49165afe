"""Documents that the tests write."""


def timeout(name="slow", idle="5s", version="kuma.io/v1alpha1", labels=None, **more):
    """A small policy of the namespace that it is written in."""
    return {
        "apiVersion": version,
        "kind": "MeshTimeout",
        "metadata": {"name": name, "labels": {"kuma.io/mesh": "default", **(labels or {})}},
        "spec": {"to": [{"targetRef": {"kind": "Mesh"}, "default": {"idleTimeout": idle}}]},
        **more,
    }


def route(name="shop", weight=90):
    """A route that splits calls of a service."""
    parts = [("backend", weight), ("backend-v2", 10)]
    refs = [{"kind": "MeshService", "name": name, "port": 80, "weight": share} for name, share in parts]
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
        "default": {"backendRefs": refs},
    }
    target = {"kind": "MeshService", "name": "backend"}
    return {
        "apiVersion": "kuma.io/v1alpha1",
        "kind": "MeshHTTPRoute",
        "metadata": {"name": name, "labels": {"kuma.io/mesh": "default", "app": "web"}},
        "spec": {"targetRef": {"kind": "Mesh"}, "to": [{"targetRef": target, "rules": [rule]}]},
    }


def config_map(name, labels=None, **data):
    """A ConfigMap."""
    metadata = {"name": name, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
