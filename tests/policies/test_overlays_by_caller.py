"""Faults and rates that depend on who calls: a real Envoy, and callers with and without certificates."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from koguma.core.build import skeletons
from koguma.envoy import by_caller, filters
from koguma.model.overlay import InboundEntry, OverlayContext
from koguma.model.resource import Key
from koguma.policies import mesh_fault_injection, mesh_rate_limit
from tests.envoy import real_envoy
from tests.envoy.some_certificates import Pair, call_as, certificate, mutual
from tests.ports import free_port

pytestmark = pytest.mark.slow

WHERE = OverlayContext("http", "default", "east", "kri_it")
FORGED = {"x-forwarded-client-cert": "URI=spiffe://default/web"}

# The certificates of callers; a caller without any calls in plain text.
CALLERS: Mapping[str, tuple[str, ...]] = {
    "web": ("spiffe://default/web", "kuma://kuma.io/service/web", "kuma://team/a"),
    "api": ("spiffe://default/api", "kuma://kuma.io/service/api", "kuma://team/b"),
    "both": ("spiffe://default/api", "spiffe://default/web", "kuma://team/b"),
    "stranger": ("spiffe://other/web",),
}


def ruled(conf: Any, number: int = 0, *, of: str = "rules", **callers: Any) -> InboundEntry:
    origin = Key("Kind", "default", "", "", "it")
    return InboundEntry(conf, origin, f"kri_{number}", path=f"spec.{of}[{number}]", **callers)


def abort(status: int, percentage: int = 100) -> Any:
    return {"http": [{"abort": {"httpStatus": status, "percentage": percentage}}]}


def exact(name: str) -> Any:
    return {"spiffe_id": ("Exact", f"spiffe://default/{name}")}


def tagged(**tags: str) -> Any:
    return {
        "tags": tuple((name.replace("service", "kuma.io/service"), value) for name, value in tags.items())
    }


MESH = {"spiffe_id": ("Prefix", "spiffe://default/")}
NAMED = {"sni": ("Exact", "inner.example")}

# Entries, the least important first, and which status each caller gets.
FAULTS: Mapping[str, tuple[tuple[InboundEntry, ...], Mapping[str, int]]] = {
    "the closest entry comes first": (
        (ruled(abort(411), **exact("web")), ruled(abort(412), **MESH), ruled(abort(413))),
        {"web": 411, "both": 411, "api": 412, "stranger": 413, "plain": 413, "forged": 413},
    ),
    "a caller meets the faults of all that are for it": (
        (
            ruled(abort(411, 0), **exact("web")),
            ruled({"http": []}, **exact("api")),
            ruled(abort(412), **MESH),
        ),
        {"web": 412, "api": 412, "stranger": 200, "plain": 200},
    ),
    "of entries for the same callers the most important holds": (
        (ruled(abort(411), **exact("web")), ruled(abort(412), **exact("web")), ruled(abort(413))),
        {"web": 412, "api": 413},
    ),
    "a server name": (
        (ruled(abort(411), **NAMED), ruled(abort(412), **NAMED, **exact("web"))),
        {"web": 200, "web at inner.example": 412, "api at inner.example": 411, "plain": 200},
    ),
    "by tags, the most important holds": (
        (ruled(abort(411), of="from"), ruled(abort(412), of="from", **tagged(service="web"))),
        {"web": 412, "both": 412, "api": 411, "stranger": 411, "plain": 411},
    ),
    "by tags, even where another is closer": (
        (ruled(abort(412), of="from", **tagged(service="web")), ruled(abort(411), of="from")),
        {"web": 411, "api": 411, "plain": 411},
    ),
    "by tags and by identity": (
        (
            ruled(abort(411), of="from", **tagged(team="a")),
            ruled(abort(412, 0), **exact("web")),
            ruled(abort(413)),
        ),
        {"web": 413, "api": 413, "plain": 413},
    ),
    "by tags beside identity": (
        (ruled(abort(411), of="from", **tagged(team="b")), ruled(abort(412), **exact("web"))),
        {"web": 412, "api": 411, "both": 412, "stranger": 200},
    ),
}


class Called(msgspec.Struct):
    """One inbound of a proxy: with mTLS, and beside it in plain text."""

    secured: int
    plain: int
    folder: Path
    certificates: Mapping[str, Pair]

    def status(self, caller: str) -> int:
        if caller in ("plain", "forged"):
            return real_envoy.call(self.plain, headers=FORGED if caller == "forged" else {}).status
        who, _, named = caller.partition(" at ")
        answer = call_as(self.certificates[who], self.secured, self.folder, named or "it")
        assert answer is not None
        return answer.status


def listeners(name: str, overlay: Any, called: Called, ca: Pair) -> Iterator[Any]:
    on_routes = overlay.get("on_routes", {})
    places = {key: by_caller.disabled_filter(filters.name_of(key)) for key in (*filters.RESERVED, *on_routes)}
    host = {
        "name": name,
        "domains": ["*"],
        "routes": [{"match": {"prefix": "/"}, "direct_response": {"status": 200}}],
        "typed_per_filter_config": {filters.name_of(key): each for key, each in on_routes.items()},
    }
    hcm = {
        "stat_prefix": name,
        "route_config": {"name": name, "virtual_hosts": [host]},
        "forward_client_cert_details": "SANITIZE_SET",
        "set_current_client_cert_details": {"uri": True},
    }
    chain = skeletons.chain({"hcm": hcm, "http_filters": skeletons.http_filters("http")}, places)
    inspector = {"name": "inspector", "typed_config": {"@type": INSPECTOR}}
    secured = real_envoy.listener(f"{name} secured", called.secured, *chain, **mutual(ca))
    yield {**secured, "listener_filters": [inspector]}
    yield real_envoy.listener(f"{name} plain", called.plain, *chain)


INSPECTOR = "type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector"


def test_every_caller_meets_the_faults_that_are_for_it(tmp_path: Path):
    ca = certificate(())
    certificates = {name: certificate(uris, ca) for name, uris in CALLERS.items()}
    ports = (free_port() for _ in range(2 * len(FAULTS)))
    calls = {case: Called(next(ports), next(ports), tmp_path, certificates) for case in FAULTS}
    hook = mesh_fault_injection.KIND.policy.hooks.inbound
    made = [
        each
        for case, (entries, _) in FAULTS.items()
        for each in listeners(case, hook({}, entries, WHERE), calls[case], ca)
    ]
    with real_envoy.envoy(made, [], tmp_path):
        got = {
            case: {caller: calls[case].status(caller) for caller in wanted}
            for case, (_, wanted) in FAULTS.items()
        }
    assert got == {case: wanted for case, (_, wanted) in FAULTS.items()}


def rate(num: int) -> Any:
    return {"local": {"http": {"requestRate": {"num": num, "interval": "600s"}}}}


def test_callers_with_a_rate_of_their_own_share_it_with_nobody_and_the_others_share_one(tmp_path: Path):
    ca = certificate(())
    certificates = {name: certificate(uris, ca) for name, uris in CALLERS.items()}
    called = Called(free_port(), free_port(), tmp_path, certificates)
    # What comes with routes of its own is counted on its own, so those in plain text have another three.
    entries = (ruled(rate(2), 1, **MESH), ruled(rate(1), 2, **exact("web")), ruled(rate(3), 3))
    overlay = mesh_rate_limit.KIND.policy.hooks.inbound(rate(3), entries, WHERE)
    asked = ("web", "both", "web", *["api"] * 3, *["stranger"] * 4, "plain", *["forged"] * 3, "plain")
    with real_envoy.envoy(list(listeners("it", overlay, called, ca)), [], tmp_path) as envoy:
        got = [(caller, called.status(caller)) for caller in asked]
        counted = envoy.stats("kri_it.http_local_rate_limit.rate_limited")
        labels = envoy.get("/stats/prometheus?filter=http_local_rate_limit.rate_limited")
    taken = Counter(caller for caller, status in got if status == 200)
    assert taken == {"web": 1, "api": 2, "stranger": 3, "plain": 1, "forged": 2}
    assert counted == {"kri_it.http_local_rate_limit.rate_limited": len(asked) - 9}
    assert 'envoy_local_http_ratelimit_prefix="kri_it"' in labels
