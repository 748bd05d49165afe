"""The one order of filters, also of one that stands several times in a chain."""

from koguma.envoy import filters


def names(chain) -> list[str]:
    return [each["name"] for each in chain]


def test_filters_stand_in_the_order_of_the_table_whoever_gave_them_first():
    given = {filters.ROUTER: {}, "envoy.filters.http.lua": {}, filters.FAULT: {}, filters.RBAC: {}}
    wanted = [filters.RBAC, filters.FAULT, "envoy.filters.http.lua", filters.ROUTER]
    assert names(filters.http_chain(given)) == wanted
    assert names(filters.http_chain(dict(reversed(given.items())))) == wanted


def test_further_instances_stand_beside_the_first_under_names_of_their_own():
    further = [filters.instance_key(filters.FAULT, name) for name in ("kri_b", "kri_a")]
    given = {filters.ROUTER: {}, filters.GRPC_STATS: {}, filters.RBAC: {}}
    chain = filters.http_chain(
        given | {further[0]: {"a": 1}}, {further[1]: {"name": "kri_a", "disabled": True}}
    )
    assert names(chain) == [filters.RBAC, "kri_a", "kri_b", filters.GRPC_STATS, filters.ROUTER]
    assert chain[1:3] == [{"name": "kri_a", "disabled": True}, {"name": "kri_b", "typed_config": {"a": 1}}]


def test_instances_that_are_numbered_act_in_the_order_of_their_numbers():
    keys = [filters.numbered_key(filters.FAULT, number) for number in (3, 12, 1, 2)]
    chain = filters.http_chain({key: {} for key in (*keys, filters.ROUTER)})
    fault = filters.FAULT
    assert names(chain) == [fault, f"{fault}.02", f"{fault}.03", f"{fault}.12", filters.ROUTER]


def test_a_filter_that_nobody_knows_stands_before_the_last_one_and_keeps_its_name():
    assert names(filters.http_chain({filters.ROUTER: {}, "example.org/filter": {}, filters.RBAC: {}})) == [
        filters.RBAC,
        "example.org/filter",
        filters.ROUTER,
    ]
    assert names(filters.network_chain({filters.TCP_PROXY: {}, "example.org/filter": {}})) == [
        "example.org/filter",
        filters.TCP_PROXY,
    ]


def test_whole_filters_stand_among_the_others():
    whole = {filters.NETWORK_LOCAL_RATELIMIT: {"name": "it", "config_discovery": {}}}
    chain = filters.network_chain({filters.TCP_PROXY: {}, filters.NETWORK_RBAC: {}}, whole)
    assert names(chain) == [filters.NETWORK_RBAC, "it", filters.TCP_PROXY]
