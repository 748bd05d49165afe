"""How a proxy chooses among the endpoints of a destination: near ones first, and by which algorithm.

MeshLoadBalancingStrategy acts on outbound traffic. `localityAwareness` prefers endpoints with the same tags
as the client's (`localZone.affinityTags`), then its zone, and says which zones take over and when
(`crossZone`). `loadBalancer` names the algorithm. `hashPolicies` says which part of a request keeps it with
one endpoint, for RingHash and Maglev; it alone can also be set on a route (`to[].targetRef.kind`).

```yaml
type: MeshLoadBalancingStrategy
name: sessions-stay
mesh: default
spec:
  to:
    - targetRef: {kind: MeshMultiZoneService, name: backend}
      default:
        localityAwareness:
          localZone:
            affinityTags: [{key: k8s.io/node}]
          crossZone:
            failover: [{to: {type: Only, zones: [east]}}, {to: {type: None}}]
            failoverThreshold: {percentage: 70}
        loadBalancer:
          type: RingHash
          ringHash: {minRingSize: 1024}
        hashPolicies:
          - {type: Cookie, cookie: {name: session, ttl: 1h}}
```
"""

from collections.abc import Iterator
from math import isqrt
from typing import Annotated, Final, Literal

from koguma.envoy.proto_json import Data
from koguma.model import columns, target_ref
from koguma.model.kind import POLICY, Deprecation, Kind, Policy, V1Conversion, ValidationContext
from koguma.model.overlay import Locality, Overlay, OverlayContext, PolicyHooks
from koguma.model.phase import Phase
from koguma.model.schema import IntOrString, Json, Spec, doc
from koguma.model.target_ref import TargetRef
from koguma.model.violation import Violation, child, item
from koguma.policies.mesh_load_balancing_strategy import hash_policies, locality_awareness
from koguma.policies.mesh_load_balancing_strategy.hash_policies import HashPolicy
from koguma.policies.mesh_load_balancing_strategy.locality_awareness import LocalityAwareness
from koguma.policies.parts import fields, spelling

_RING_SIZE_MAX: Final = 8_000_000
_RING_SIZE_MIN_DEFAULT: Final = 1024  # Envoy's own
_TABLE_SIZE_MAX: Final = 5_000_011


class LbRoundRobin(Spec):
    """One after the other; nothing to set."""


class LbRandom(Spec):
    """Any; nothing to set."""


class LbLeastRequest(Spec):
    """The one with the fewest requests among some."""

    choice_count: Annotated[int | None, doc("How many are compared; 2 by default.", ge=2, le=4294967295)] = (
        None
    )
    active_request_bias: Annotated[
        IntOrString | None, doc("How strongly running requests count where weights differ.")
    ] = None


class LbRingHash(Spec):
    """The nearest on a ring of hashes."""

    hash_function: Annotated[Literal["XXHash", "MurmurHash2"] | None, doc("XXHash by default.")] = None
    min_ring_size: Annotated[int | None, doc("1024 by default.", ge=1, le=_RING_SIZE_MAX)] = None
    max_ring_size: Annotated[int | None, doc("8000000 by default.", ge=1, le=_RING_SIZE_MAX)] = None
    hash_policies: Annotated[tuple[HashPolicy, ...] | None, doc("Older place of `hashPolicies`.")] = None


class LbMaglev(Spec):
    """By a table of hashes."""

    table_size: Annotated[int | None, doc("A prime number; 65537 by default.", ge=1, le=_TABLE_SIZE_MAX)] = (
        None
    )
    hash_policies: Annotated[tuple[HashPolicy, ...] | None, doc("Older place of `hashPolicies`.")] = None


class LoadBalancer(Spec):
    """The algorithm; the field that belongs to `type` says more."""

    type: Annotated[
        Literal["RoundRobin", "LeastRequest", "RingHash", "Random", "Maglev"], doc("The algorithm.")
    ]
    round_robin: Annotated[LbRoundRobin | None, doc("For type RoundRobin.")] = None
    least_request: Annotated[LbLeastRequest | None, doc("For type LeastRequest.")] = None
    ring_hash: Annotated[LbRingHash | None, doc("For type RingHash.")] = None
    random: Annotated[LbRandom | None, doc("For type Random.")] = None
    maglev: Annotated[LbMaglev | None, doc("For type Maglev.")] = None


class LoadBalancingConf(Spec):
    """How endpoints are chosen."""

    locality_awareness: Annotated[LocalityAwareness | None, doc("Preference for what is near.")] = None
    load_balancer: Annotated[LoadBalancer | None, doc("The algorithm.")] = None
    hash_policies: Annotated[
        tuple[HashPolicy, ...] | None, doc("What keeps a request with one endpoint; in order.")
    ] = None


class LoadBalancingTo(Spec):
    """How endpoints of one destination are chosen."""

    target_ref: Annotated[TargetRef, doc("The destination, or a route to it.")]
    default: Annotated[LoadBalancingConf, doc("How endpoints are chosen.")] = LoadBalancingConf()


class MeshLoadBalancingStrategySpec(Spec):
    """Which proxies, and how they choose among endpoints."""

    target_ref: Annotated[
        TargetRef | None, doc("The proxies that this acts on; all of the mesh by default.")
    ] = None
    to: Annotated[tuple[LoadBalancingTo, ...], doc("Destinations and how endpoints are chosen.")] = ()


_conf_reading: Final = spelling.chain(
    hash_policies.reading,
    spelling.field("loadBalancer", spelling.field("ringHash", hash_policies.reading)),
    spelling.field("loadBalancer", spelling.field("maglev", hash_policies.reading)),
)
clean: Final = spelling.chain(
    spelling.refs, spelling.field("to", spelling.each(spelling.field("default", _conf_reading)))
)


def validate(spec: MeshLoadBalancingStrategySpec, _context: ValidationContext) -> Iterator[Violation]:
    """What Kuma refuses, with its messages, and sizes that Envoy refuses."""
    top = spec.target_ref or target_ref.MESH
    yield from target_ref.violations(top, "spec.targetRef", target_ref.PROXIES, sections=False)
    for index, entry in enumerate(spec.to):
        path = item("spec.to", index)
        at = child(path, "targetRef")
        yield from _target(entry, top, at)
        if entry.target_ref.kind in target_ref.ROUTES:
            yield from _on_route(entry, child(path, "default"))
        else:
            yield from _conf(entry, child(path, "default"))


def _target(entry: LoadBalancingTo, top: TargetRef, path: str) -> Iterator[Violation]:
    kinds = ("Mesh", *target_ref.DESTINATIONS, *target_ref.ROUTES)
    if top.kind == "MeshGateway" and entry.default.load_balancer and entry.target_ref.kind != "Mesh":
        # A gateway has one cluster per service for all its listeners, so an algorithm holds for all.
        message = "value is not supported, only Mesh is allowed if loadBalancer is set"
        yield Violation(child(path, "kind"), message, "kind")
        return
    yield from target_ref.violations(entry.target_ref, path, kinds)


def _on_route(entry: LoadBalancingTo, path: str) -> Iterator[Violation]:
    kind = entry.target_ref.kind
    for field, value in (
        ("localityAwareness", entry.default.locality_awareness),
        ("loadBalancer", entry.default.load_balancer),
    ):
        if value is not None:
            message = f"field is not allowed when targetRef.kind is {kind}, only hashPolicies is supported"
            yield Violation(child(path, field), message, "forbidden")
    yield from hash_policies.violations(entry.default.hash_policies or (), child(path, "hashPolicies"))


def _conf(entry: LoadBalancingTo, path: str) -> Iterator[Violation]:
    conf = entry.default
    if conf.locality_awareness is not None:
        at = child(path, "localityAwareness")
        yield from locality_awareness.violations(conf.locality_awareness, entry.target_ref, at)
    if conf.load_balancer is not None:
        yield from _algorithm(conf.load_balancer, conf, child(path, "loadBalancer"))
    yield from hash_policies.violations(conf.hash_policies or (), child(path, "hashPolicies"))


def _algorithm(balancer: LoadBalancer, conf: LoadBalancingConf, path: str) -> Iterator[Violation]:
    if balancer.type == "LeastRequest" and balancer.least_request is not None:
        at = f"{path}.leastRequest.activeRequestBias"
        yield from _bias(balancer.least_request.active_request_bias, at)
    if balancer.type == "RingHash" and balancer.ring_hash is not None:
        at = child(path, "ringHash")
        yield from _ring(balancer.ring_hash, at)
        yield from _older_hashes(balancer.ring_hash.hash_policies, conf, child(at, "hashPolicies"))
    if balancer.type == "Maglev" and balancer.maglev is not None:
        at = child(path, "maglev")
        if balancer.maglev.table_size is not None and not _is_prime(balancer.maglev.table_size):
            yield Violation(child(at, "tableSize"), "must be a prime number", "range")
        yield from _older_hashes(balancer.maglev.hash_policies, conf, child(at, "hashPolicies"))


def _bias(value: IntOrString | None, at: str) -> Iterator[Violation]:
    number = None if value is None else fields.number(value)
    if value is not None and number is None:
        yield Violation(at, "string must be a valid number", "number")
    elif number is not None and number < 0:
        yield Violation(at, "must be greater or equal then: 0", "range")


def _ring(ring: LbRingHash, path: str) -> Iterator[Violation]:
    smallest = ring.min_ring_size or _RING_SIZE_MIN_DEFAULT
    if ring.max_ring_size is not None and ring.max_ring_size < smallest:
        message = f"must not be less than minRingSize, which is {smallest}"
        yield Violation(child(path, "maxRingSize"), message, "range")


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, isqrt(number) + 1))


def _older_hashes(
    policies: tuple[HashPolicy, ...] | None, conf: LoadBalancingConf, path: str
) -> Iterator[Violation]:
    if policies is not None and conf.hash_policies is not None:
        yield Violation(path, "must not be set beside hashPolicies one level up", "exclusive")
    yield from hash_policies.violations(policies or (), path)


def warn(spec: MeshLoadBalancingStrategySpec, _context: ValidationContext) -> Iterator[str]:
    """Deprecations, and what stands there and cannot act."""
    yield from target_ref.warnings(spec.target_ref)
    for index, entry in enumerate(spec.to):
        path = f"spec.to[{index}].default"
        yield from _idle(entry, path)
        balancer = entry.default.load_balancer
        if balancer is None:
            continue
        if entry.default.hash_policies and balancer.type not in ("RingHash", "Maglev"):
            yield f"{path}.hashPolicies has no effect with {balancer.type}; it needs RingHash or Maglev"
        for field, body in (("ringHash", balancer.ring_hash), ("maglev", balancer.maglev)):
            if body is not None and body.hash_policies is not None:
                at = f"{path}.loadBalancer.{field}.hashPolicies"
                yield f"{at} is deprecated, use {path}.hashPolicies instead"


def _idle(entry: LoadBalancingTo, path: str) -> Iterator[str]:
    """Connections have an address and Envoy's state, nothing else to hash."""
    if entry.target_ref.kind != "MeshTCPRoute":
        return
    for index, policy in enumerate(entry.default.hash_policies or ()):
        if policy.type not in ("Connection", "FilterState"):
            at = f"{path}.hashPolicies[{index}]"
            yield f"{at} has no effect on a MeshTCPRoute; only Connection and FilterState can act there"


def outbound(conf: Json, context: OverlayContext) -> Overlay:
    """How Envoy chooses an endpoint: the cluster's algorithm, and what is hashed."""
    balancer = conf.get("loadBalancer") or {}
    overlay: Data = {"cluster": _cluster(balancer)} if balancer else {}
    if hashes := hash_policies.envoy(_hashes(conf, balancer), is_http=context.is_http):
        overlay["route_action" if context.is_http else "tcp"] = {"hash_policy": hashes}
    return overlay


def locality(conf: Json) -> Locality | None:
    """Which endpoints are near, and which zones take over from the client's own."""
    return locality_awareness.locality(conf.get("localityAwareness"))


def _hashes(conf: Json, balancer: Json) -> Json:
    """The hash policies, also where they stood once."""
    if conf.get("hashPolicies") is not None:
        return conf["hashPolicies"]
    section = {"RingHash": "ringHash", "Maglev": "maglev"}.get(balancer.get("type") or "", "")
    return (balancer.get(section) or {}).get("hashPolicies")


def _cluster(balancer: Json) -> Data:
    match balancer["type"]:
        case "LeastRequest":
            config = _least_request(balancer.get("leastRequest") or {})
            return {"lb_policy": "LEAST_REQUEST", "least_request_lb_config": config}
        case "RingHash":
            return {
                "lb_policy": "RING_HASH",
                "ring_hash_lb_config": _ring_hash(balancer.get("ringHash") or {}),
            }
        case "Maglev":
            size = (balancer.get("maglev") or {}).get("tableSize")
            return {"lb_policy": "MAGLEV", "maglev_lb_config": {} if size is None else {"table_size": size}}
        case "Random":
            return {"lb_policy": "RANDOM"}
        case _:
            return {"lb_policy": "ROUND_ROBIN"}


def _least_request(least: Json) -> Data:
    config: Data = {}
    if least.get("choiceCount") is not None:
        config["choice_count"] = least["choiceCount"]
    bias = least.get("activeRequestBias")
    if bias is not None:
        runtime = {
            "default_value": float(bias),
            "runtime_key": "koguma.active_request_bias",
        }  # it must have one
        config["active_request_bias"] = runtime
    return config


def _ring_hash(ring: Json) -> Data:
    config: Data = {}
    if ring.get("hashFunction"):
        config["hash_function"] = {"XXHash": "XX_HASH", "MurmurHash2": "MURMUR_HASH_2"}[ring["hashFunction"]]
    smallest, largest = ring.get("minRingSize"), ring.get("maxRingSize")
    if smallest is not None:
        config["minimum_ring_size"] = smallest
    if largest is not None:
        # Two policies may each have set one end.
        config["maximum_ring_size"] = max(largest, smallest or _RING_SIZE_MIN_DEFAULT)
    return config


_MERGED: Final = "it ends with its algorithm, where a more important policy chooses another one"
_V1: Final = V1Conversion(
    lacks=(Deprecation("spec.to[].default.hashPolicies[].type", "write Connection", value="SourceIP"),),
    keeps=tuple(
        Deprecation(
            f"spec.to[].default.loadBalancer.{section}.hashPolicies",
            "write hashPolicies beside loadBalancer",
            kept=_MERGED,
        )
        for section in ("ringHash", "maglev")
    ),
)


KIND = Kind(
    name="MeshLoadBalancingStrategy",
    plural="meshloadbalancingstrategies",
    short="mlbs",
    display=("Mesh Load Balancing Strategy", "Mesh Load Balancing Strategies"),
    doc=__doc__,
    spec=MeshLoadBalancingStrategySpec,
    columns=columns.OUTBOUND,
    sync=POLICY,
    policy=Policy(
        phase=Phase.LOAD_BALANCING, has_to=True, hooks=PolicyHooks(outbound=outbound, locality=locality)
    ),
    clean=clean,
    v1=_V1,
    validate=validate,
    warn=warn,
)
