"""What a policy of another package does wrong is said, once, and takes nothing else away."""

from typing import Annotated, Any

import pytest
from building import KINDS, bodies, database, decoded, objects, of, stored

from koguma.model.kind import POLICY, Kind, Kinds, Policy
from koguma.model.overlay import PolicyHooks
from koguma.model.schema import Spec, doc
from koguma.model.target_ref import TargetRef

MESH = """
type: Mesh
name: default
---
type: Dataplane
mesh: default
name: web
networking:
  address: 127.0.0.2
  inbound: [{name: http, port: 21080, tags: {kuma.io/service: web, kuma.io/protocol: http}}]
  outbound:
    - {address: 127.0.0.1, port: 23080, backendRef: {kind: MeshService, name: a, port: 80}}
    - {address: 127.0.0.1, port: 23081, backendRef: {kind: MeshService, name: b, port: 80}}
---
type: MeshService
mesh: default
name: a
spec: {selector: {dataplaneTags: {kuma.io/service: a}}, ports: [{port: 80, appProtocol: http}]}
---
type: MeshService
mesh: default
name: b
spec: {selector: {dataplaneTags: {kuma.io/service: b}}, ports: [{port: 80, appProtocol: http}]}
---
type: MeshTimeout
mesh: default
name: all
spec: {to: [{targetRef: {kind: Mesh}, default: {connectionTimeout: 3s}}]}
---
type: MeshTimeout
mesh: default
name: arriving
spec: {rules: [{default: {connectionTimeout: 2s}}]}
"""
TOY = {
    "type": "MeshToy",
    "mesh": "default",
    "name": "toy",
    "spec": {
        "to": [{"targetRef": {"kind": "Mesh"}, "default": {"word": "x"}}],
        "rules": [{"default": {"word": "x"}}],
    },
}


class ToyConf(Spec):
    """What it says."""

    word: Annotated[str | None, doc("A word.")] = None


class ToyTo(Spec):
    """What it says about calls."""

    target_ref: Annotated[TargetRef, doc("Where.")]
    default: Annotated[ToyConf, doc("What.")] = ToyConf()


class ToyRule(Spec):
    """What it says about calls that arrive."""

    default: Annotated[ToyConf, doc("What.")] = ToyConf()


class ToySpec(Spec):
    """All that it says."""

    to: Annotated[tuple[ToyTo, ...], doc("Calls.")] = ()
    rules: Annotated[tuple[ToyRule, ...], doc("Calls that arrive.")] = ()


def kinds_with(**hooks: Any) -> Kinds:
    policy = Policy(has_to=True, has_rules=True, hooks=PolicyHooks(**hooks))
    toy = Kind(
        name="MeshToy", plural="meshtoys", short="toy", doc="A toy.", spec=ToySpec, sync=POLICY, policy=policy
    )
    return Kinds((*KINDS, toy))


def made(**hooks: Any):
    kinds = kinds_with(**hooks)
    return of(database([*objects(MESH), stored(TOY, kinds)], kinds=kinds), "web")


def fail(*_: Any) -> Any:
    raise ZeroDivisionError("by my own zero")


def giving(overlay: Any) -> Any:
    return lambda *_: overlay


NO_PART = "is no part of an overlay here"
WRONG = [
    (fail, "ZeroDivisionError: by my own zero"),
    (giving(None), "AttributeError"),
    (giving({"cluster": 5}), 'TypeError: part "cluster" is no map'),
    (giving({"hcm": None}), 'TypeError: part "hcm" is no map'),
    (giving({"http_filter": {}}), f'TypeError: "http_filter" {NO_PART}; did you mean "http_filters"?'),
    (giving({"settings": {}}), f'TypeError: "settings" {NO_PART}; this hook has access_logs, '),
]
WRONG_INBOUND = [
    (giving({"callers": {}}), ""),
    (giving({"callers": [5]}), 'TypeError: part "callers" is no map'),
    (giving({"callers": [{"match": {}}]}), 'TypeError: part "callers" needs a map'),
    (giving({"extensions": {"lua": {}}}), 'TypeError: part "extensions" has no "lua"; it may have envoy.'),
]


@pytest.mark.parametrize(
    ("side", "hook", "said"),
    [
        *((side, hook, said) for side in ("outbound", "inbound") for hook, said in WRONG),
        *(("inbound", hook, said) for hook, said in WRONG_INBOUND),
        ("outbound", giving({"on_routes": {}}), f'TypeError: "on_routes" {NO_PART}'),
    ],
)
def test_a_hook_that_goes_wrong_is_said_once_and_the_rest_stands(side: str, hook: Any, said: str):
    without, found = of(database(objects(MESH)), "web"), made(**{side: hook})
    assert bodies(found)[0] == bodies(without)[0]
    texts = [each.text for each in found.failures]
    start = "MeshToy cannot say what it means for Envoy: "
    assert len(texts) == bool(said)
    assert all(text.startswith(start + said) for text in texts)
    assert {(each.type, each.origin) for each in found.failures} <= {("policy", "MeshToy")}


def test_what_envoy_would_not_take_is_not_sent_and_the_rest_is():
    found = made(outbound=giving({"cluster": {"connect_timeout": "-1s", "nothing_like_it": 1}}))
    failed = {each.id: each.text for each in found.failures}
    names = {f"kri_msvc_default_east__{name}_80" for name in "ab"}
    assert set(failed) == {("cluster", name) for name in names}
    assert all("connect_timeout" in text and "nothing_like_it" in text for text in failed.values())
    assert set(found.of_type("endpoints")) == names
    assert set(found.of_type("listener")) == {*names, "kri_dp_default_east__web_http"}


def test_a_policy_of_another_package_is_laid_over_like_any_other():
    def outbound(conf, where):
        return {"cluster": {"alt_stat_name": conf["word"] + where.name}}

    found = made(outbound=outbound, inbound=giving({"cluster": {"alt_stat_name": "in"}}))
    assert found.failures == ()
    said = {name: decoded(resource)["alt_stat_name"] for name, resource in found.of_type("cluster").items()}
    assert said == {
        "kri_dp_default_east__web_http": "in",
        "kri_msvc_default_east__a_80": "xkri_msvc_default_east__a_80",
        "kri_msvc_default_east__b_80": "xkri_msvc_default_east__b_80",
    }
