"""A small operator for the real kopf: it greets every ConfigMap that asks for it."""

import kopf


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_: object) -> None:
    settings.posting.enabled = False  # no Events about it


@kopf.on.create("configmaps", labels={"greet": kopf.PRESENT})
@kopf.on.update("configmaps", labels={"greet": kopf.PRESENT})
def greet(body: kopf.Body, patch: kopf.Patch, **_: object) -> str:
    patch.metadata.labels["greeted"] = body["data"]["name"]
    return "hello"  # kopf keeps what a handler returns in the status of the object
