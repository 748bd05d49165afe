"""A small operator for the real kopf: it greets every ConfigMap that asks for it, and measures widgets."""

import kopf


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_: object) -> None:
    settings.posting.enabled = False  # no Events about it


@kopf.on.create("configmaps", labels={"greet": kopf.PRESENT})
@kopf.on.update("configmaps", labels={"greet": kopf.PRESENT})
def greet(body: kopf.Body, patch: kopf.Patch, **_: object) -> str:
    patch.metadata.labels["greeted"] = body["data"]["name"]
    return "hello"  # kopf keeps what a handler returns in the status of the object


@kopf.on.create("example.com", "v1", "widgets")
@kopf.on.update("example.com", "v1", "widgets", field="spec.size")
def measure(spec: kopf.Spec, patch: kopf.Patch, **_: object) -> None:
    patch.status["phase"] = f"size {spec['size']}"


@kopf.on.delete("example.com", "v1", "widgets")
def forget(**_: object) -> None:
    """Something to do before it is gone, so that kopf has a finalizer."""
