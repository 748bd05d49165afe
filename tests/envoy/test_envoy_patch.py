"""Patches on encoded resources: each document in `patches` is a case; Envoy reads everything that comes out.

`change` are modifications, whose policies are called one, two, three in their order. Below stands what is to
be found at some places, which resources there are, who changed which, and what could not be done.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from koguma.envoy import schema
from koguma.envoy.encode import Encoder
from koguma.envoy.patch import Patched, Patcher, over
from koguma.envoy.patch_messages import Messages
from koguma.envoy.patch_modifications import MESSAGES, PolicyModification
from koguma.envoy.snapshot import CLUSTER, LISTENER, ROUTES, Id, XdsResource
from tests.core.building import at
from tests.envoy import plain_data, real_envoy

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).with_name("patches")
CASES = [case for file in sorted(FOLDER.glob("*.yaml")) for case in yaml.safe_load_all(file.read_text())]
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight")
ENCODER = Encoder(schema.load(schema.find_envoy()))
PATCHER = Patcher(ENCODER)


READER = Messages(ENCODER.schema)


def data_of(full_name: str) -> st.SearchStrategy[Any]:
    return plain_data.plain_data(full_name, 3)


def typed(name: str, **fields: Any) -> dict[str, Any]:
    return {"@type": f"type.googleapis.com/{name}", **fields}


def resource(type_: str, data: dict[str, Any], needs: tuple[Id, ...] = ()) -> XdsResource:
    return ENCODER.resource(type_, data["name"], data, needs)


OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
BACKEND = real_envoy.cluster(
    "backend",
    real_envoy.endpoint(1),
    connect_timeout="5.25s",
    transport_socket={
        "name": "envoy.transport_sockets.tls",
        "typed_config": typed("envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", sni="here"),
    },
    typed_extension_protocol_options={
        OPTIONS: typed(
            OPTIONS,
            common_http_protocol_options={"idle_timeout": "60s"},
            explicit_http_config={"http2_protocol_options": {}},
        )
    },
)
OTHER = real_envoy.cluster("other", connect_timeout="5s")
BYTES = {
    "filters": [
        {
            "name": "envoy.filters.network.tcp_proxy",
            "typed_config": typed(
                "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy", stat_prefix="x", cluster="backend"
            ),
        }
    ]
}
OWN = {
    "name": "own",
    "virtual_hosts": [
        {
            "name": "own",
            "domains": ["*"],
            "routes": [{"match": {"prefix": "/a"}, "route": {"cluster": "backend"}}],
        }
    ],
    "validate_clusters": False,
}
ROUTER = {
    "name": "envoy.filters.http.router",
    "typed_config": typed("envoy.extensions.filters.http.router.v3.Router", suppress_envoy_headers=True),
}


def tagged(listener: dict[str, Any], **tags: str) -> dict[str, Any]:
    return {**listener, "metadata": {"filter_metadata": {"io.kuma.tags": tags}}}


RESOURCES = {
    made.id: made
    for made in (
        resource(CLUSTER, BACKEND, (("secret", "a"),)),
        resource(CLUSTER, OTHER),
        resource(
            LISTENER,
            tagged(
                real_envoy.listener("web", 10100, real_envoy.hcm(OWN, (), http_filters=[ROUTER])),
                team="a",
                **{"kuma.io/service": "web"},
            ),
        ),
        resource(
            LISTENER,
            {
                "name": "bytes",
                "address": real_envoy.address(10200),
                "filter_chains": [{**BYTES, "filter_chain_match": {"destination_port": n}} for n in (1, 2)],
                "default_filter_chain": BYTES,
            },
        ),
        resource(
            ROUTES,
            {
                "name": "routes",
                "virtual_hosts": [
                    {"name": name, "domains": [f"{name}.test"]} for name in ("first", "second")
                ],
            },
        ),
    )
}


def origin_of(id_: Id) -> str:
    return "inbound" if id_ == (LISTENER, "bytes") else "outbound"


def modifications(confs: list[Any]) -> list[PolicyModification]:
    return [
        PolicyModification(conf, NUMBERS[number % len(NUMBERS)], f"spec[{number}]")
        for number, conf in enumerate(confs)
    ]


def patched(
    confs: list[Any], resources: dict[Id, XdsResource] = RESOURCES, *, is_home: bool = True
) -> Patched:
    program = PATCHER.program(modifications(confs))

    def outcome(n_before: int, one: XdsResource, origin: str):
        return PATCHER.outcome(program.modifications[n_before:], one, origin)

    return over(program, resources, origin_of, outcome, is_home=is_home)


def decoded(one: XdsResource | None) -> Any:
    return json.loads(json.dumps(ENCODER.decoded(one))) if one else None


def looked(made: Patched, place: str) -> Any:
    type_, name, *path = place.split(" ", 2)
    data = decoded(made.resources.get((type_, name)))
    return at(data, path[0]) if path else data


@pytest.mark.parametrize("case", CASES, ids=[case["case"] for case in CASES])
def test_pieces_are_changed_as_the_case_says(case):
    made = patched(case["change"])
    look = case.get("look") or {}
    assert {place: looked(made, place) for place in look} == look
    touched = {" ".join(id_): list(policies) for id_, policies in made.policies.items()}
    assert touched == case["touched"]
    failures = [f"{each.type} {each.name}: {each.text}" for each in made.failures]
    assert failures == (case.get("failures") or [])
    for id_ in RESOURCES.keys() - made.policies.keys():
        assert made.resources[id_] is RESOURCES[id_], "what is not meant is not made again"
    if "names" in case:
        names = {
            type_: sorted(n for t, n in made.resources if t == type_) for type_ in (CLUSTER, LISTENER, ROUTES)
        }
        assert names == case["names"]


def test_envoy_takes_all_that_comes_out():
    listeners, clusters = [], []
    for number, case in enumerate(CASES):
        for (type_, name), each in patched(case["change"]).resources.items():
            data = {**decoded(each), "name": f"{name}-{number}"}
            if type_ == CLUSTER:
                data["load_assignment"] = {**data.get("load_assignment", {}), "cluster_name": data["name"]}
                clusters.append(data)
                continue
            if type_ == ROUTES:
                data = real_envoy.listener(f"{data['name']}-routes", 0, real_envoy.hcm(data))
            data["address"] = real_envoy.address(10_000 + len(listeners))
            listeners.append(data)
    assert len(listeners) > 3 * 20
    assert real_envoy.validated(listeners, clusters) == ""


def test_a_changed_piece_needs_what_it_needed_and_an_added_one_nothing():
    made = patched(
        [
            {"cluster": {"operation": "Patch", "value": {"connect_timeout": "1s"}}},
            {"cluster": {"operation": "Add", "value": {"name": "new"}}},
        ]
    ).resources
    assert made[CLUSTER, "backend"].needs == (("secret", "a"),)
    assert made[CLUSTER, "new"].needs == ()


def test_without_modifications_everything_is_the_same_object():
    made = patched([])
    assert made.resources is RESOURCES
    assert (made.policies, made.failures) == ({}, ())


def test_what_is_added_elsewhere_takes_away_what_has_its_name_here_and_is_not_added_twice():
    confs = [
        {"cluster": {"operation": "Add", "value": {"name": "other", "connect_timeout": "1s"}}},
        {"cluster": {"operation": "Add", "value": {"name": "new"}}},
        {"cluster": {"operation": "Patch", "value": {"nothing": 1}}},
    ]
    made = patched(confs, is_home=False)
    assert set(RESOURCES) - set(made.resources) == {(CLUSTER, "other")}
    assert set(made.resources) <= set(RESOURCES)
    assert made.failures == ()  # told once, where it is at home
    assert made.policies == {(CLUSTER, "other"): ("one",)}


def test_copies_of_copies_do_not_fill_the_memory():
    metadata = "/metadata/filterMetadata/a"
    patches = [{"op": "add", "path": metadata, "value": {"x": "y"}}]
    patches += [{"op": "copy", "from": metadata, "path": f"{metadata}/c{number}"} for number in range(40)]
    conf = {"cluster": {"operation": "Patch", "match": {"name": "other"}, "jsonPatches": patches}}
    (failure,) = patched([conf]).failures
    assert failure.text.endswith("makes more than 1000000 characters of it")


def test_what_is_put_in_by_a_patch_is_not_changed_by_the_next_one():
    patches = [
        {"op": "add", "path": "/metadata/filterMetadata/a", "value": {"x": "y"}},
        {"op": "add", "path": "/metadata/filterMetadata/a/z", "value": 1},
    ]
    conf = {"cluster": {"operation": "Patch", "jsonPatches": patches}}
    first, second = patched([conf]).resources, patched([conf]).resources
    assert first == second
    assert patches[0]["value"] == {"x": "y"}


# Messages in which nothing is merged otherwise than protobuf does: no durations, optional numbers or Anys.
PLAIN = (
    "envoy.config.core.v3.Address",
    "envoy.config.core.v3.DataSource",
    "envoy.config.core.v3.HeaderValue",
    "envoy.config.core.v3.Locality",
    "envoy.type.matcher.v3.MetadataMatcher",
    "google.protobuf.Struct",
)


@pytest.mark.property
@given(st.sampled_from(PLAIN).flatmap(lambda name: st.tuples(st.just(name), *[data_of(name)] * 2)))
def test_values_are_merged_as_protobuf_merges(drawn):
    name, under, laid = drawn
    ours, theirs, value = (READER.read(name, data) for data in (under, under, laid))
    READER.merge(ours, value)
    theirs.MergeFrom(value)
    assert ours == theirs


PATHS = (
    "/name",
    "/metadata/a/0",
    "/filterChains/0/filters/0/typedConfig",
    "/-",
    "/a~1b",
    "",
    "/filterChains/-",
)
OPERATIONS = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["add", "remove", "replace", "move", "copy"]),
        "path": st.sampled_from(PATHS),
    },
    optional={"from": st.sampled_from(PATHS), "value": plain_data.JSON},
)


def changes(what: str) -> st.SearchStrategy[Any]:
    operations = ["Add", "AddFirst", "AddLast", "AddBefore", "AddAfter", "Remove", "Patch"]
    value = plain_data.plain_data(MESSAGES[what], 2) | plain_data.JSON
    names = ["backend", "web", "first", "envoy.filters.http.router", "envoy.filters.network.tcp_proxy"]
    conf = st.fixed_dictionaries(
        {"operation": st.sampled_from(operations)},
        optional={
            "match": st.fixed_dictionaries({}, optional={"name": st.sampled_from(names)}),
            "value": value,
            "jsonPatches": st.lists(OPERATIONS, max_size=3),
        },
    )
    return conf.map(lambda made: {what: made})


@pytest.mark.property
@given(st.lists(st.sampled_from(list(MESSAGES)).flatmap(changes), max_size=4))
def test_whatever_is_asked_for_what_comes_out_keeps_envoys_rules_and_nothing_raises(confs):
    made = patched(confs)
    for id_, each in made.resources.items():
        again = ENCODER.resource(*id_, ENCODER.decoded(each))
        assert again.body == each.body
    assert patched(confs).resources == made.resources
    for failure in made.failures:
        assert failure.origin in NUMBERS
        assert failure.text.startswith("spec[")
