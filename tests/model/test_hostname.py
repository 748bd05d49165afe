"""Hostnames with wildcards: which contain which, who owns a request, and which routes it sees."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koguma.model import hostname
from koguma.model.hostname import ANY, ServedRoute, VirtualHost

_LABELS = "ab"
_HOSTS = [".".join(labels) for n in (1, 2, 3) for labels in product(_LABELS, repeat=n)]
_NAMES = [ANY, *_HOSTS, *(f"*.{host}" for host in _HOSTS if host.count(".") < 2)]

hostnames = st.sampled_from(_NAMES)
hosts = st.sampled_from([*_HOSTS, "b.a.b.a"])
ports = st.lists(hostnames, min_size=1, max_size=5, unique=True)
routes = st.lists(st.lists(hostnames, max_size=3), max_size=6)


def _covers(name, host):
    """What a hostname means for one whole name, said the long way: label by label from the right."""
    if name == ANY:
        return True
    labels, own = host.split(".")[::-1], name.split(".")[::-1]
    if own[-1] != "*":
        return labels == own
    return len(labels) >= len(own) and labels[: len(own) - 1] == own[:-1]


def _members(name):
    """All hosts of a hostname, of those with at most five labels."""
    every = (".".join(labels) for n in range(1, 6) for labels in product(_LABELS, repeat=n))
    return {host for host in every if _covers(name, host)}


_MEMBERS = {name: _members(name) for name in _NAMES}


@pytest.mark.parametrize(
    ("written", "normal"),
    [(None, "*"), ("", "*"), ("*", "*"), ("Shop.LAN", "shop.lan"), ("shop.lan.", "shop.lan"), (".", "*")],
)
def test_a_written_hostname_has_one_form(written, normal):
    assert hostname.normal(written) == normal


@pytest.mark.parametrize(
    ("authority", "host"),
    [
        ("shop.lan", "shop.lan"),
        ("SHOP.lan:8080", "shop.lan"),
        ("shop.lan.:443", "shop.lan"),
        ("127.0.0.1:80", "127.0.0.1"),
        ("[2001:DB8::1]:443", "[2001:db8::1]"),
        ("[::1]", "[::1]"),
        ("shop.lan:", "shop.lan"),
        ("", "*"),
    ],
)
def test_the_host_of_a_request_has_neither_port_nor_dot(authority, host):
    assert hostname.of_authority(authority) == host


def test_exact_names_come_first_and_every_host_last():
    names = ["*", "*.lan", "b.lan", "*.z.lan", "*.a.lan", "a.b.lan", "*.a.b.lan"]
    ordered = ["a.b.lan", "b.lan", "*.a.b.lan", "*.a.lan", "*.z.lan", "*.lan", "*"]
    assert sorted(names, key=hostname.precedence) == ordered


@pytest.mark.parametrize(
    ("outer", "inner", "contained"),
    [
        ("*.example.com", "test.example.com", True),
        ("*.example.com", "foo.test.example.com", True),
        ("*.example.com", "example.com", False),
        ("*.example.com", "fooexample.com", False),
        ("*.example.com", ".example.com", False),
        ("*.example.com", "*.test.example.com", True),
        ("*.test.example.com", "*.example.com", False),
        ("example.com", "test.example.com", False),
        ("*", "*.example.com", True),
        ("*.example.com", "*", False),
        ("*", "localhost", True),
    ],
)
def test_a_wildcard_stands_for_one_label_or_more(outer, inner, contained):
    assert hostname.contains(outer, inner) is contained


@pytest.mark.parametrize(
    ("listener", "route", "served"),
    [
        # The Gateway API's examples for a listener `test.example.com` and for `*.example.com`.
        ("test.example.com", ("test.example.com",), ("test.example.com",)),
        ("test.example.com", ("*.example.com",), ("test.example.com",)),
        ("*.example.com", ("test.example.com", "foo.example.com"), ("foo.example.com", "test.example.com")),
        ("*.example.com", ("*.example.com", "test.example.com"), ("test.example.com", "*.example.com")),
        ("*.example.com", ("foo.test.example.com",), ("foo.test.example.com",)),
        ("*.example.com", ("example.com", "test.example.net"), ()),
        ("test.example.com", ("test.example.net", "*.example.net", "*.test.example.com"), ()),
        # Those of the facts about it.
        ("api.shop.lan", ("*.shop.lan", "x.org"), ("api.shop.lan",)),
        ("*.pay.lan", ("eu.pay.lan", "pay.lan"), ("eu.pay.lan",)),
        ("*.a.lan", ("*.b.a.lan",), ("*.b.a.lan",)),
        ("*.b.a.lan", ("*.a.lan",), ("*.b.a.lan",)),
        ("*", ("q.lan",), ("q.lan",)),
        ("shop.lan", (), ("shop.lan",)),
        ("*", (), ("*",)),
        ("*.example.com", ("fooexample.com",), ()),
    ],
)
def test_a_route_is_served_where_it_and_the_listener_meet(listener, route, served):
    assert hostname.intersection(listener, route) == served


def test_a_route_for_more_hosts_is_also_inside_the_virtual_host_of_one():
    listened = hostname.virtual_hosts("*", [("*",), ("*.x.lan",), ("a.x.lan", "*.lan")], ["*"])
    assert listened == (
        VirtualHost("a.x.lan", (ServedRoute(2, "a.x.lan"), ServedRoute(1, "*.x.lan"), ServedRoute(0, "*"))),
        VirtualHost("*.x.lan", (ServedRoute(1, "*.x.lan"), ServedRoute(2, "*.lan"), ServedRoute(0, "*"))),
        VirtualHost("*.lan", (ServedRoute(2, "*.lan"), ServedRoute(0, "*"))),
        VirtualHost("*", (ServedRoute(0, "*"),)),
    )


def test_the_routes_of_a_listener_do_not_see_requests_that_a_more_exact_one_owns():
    port = ["*", "*.lan", "a.lan"]
    everywhere = [("a.lan", "b.lan", "c.org")]
    served = {listener: hostname.served(listener, everywhere, port) for listener in port}
    assert served == {"*": ("c.org", "*"), "*.lan": ("b.lan", "*.lan"), "a.lan": ("a.lan",)}
    assert hostname.owner(port, "a.lan") == "a.lan"
    assert hostname.owner(port, "z.a.lan") == "*.lan"
    assert hostname.owner(["*.lan"], "lan") is None


def test_a_listener_without_routes_still_keeps_its_hosts_from_others():
    assert hostname.virtual_hosts("a.lan", [], ["a.lan", "*"]) == (VirtualHost("a.lan", ()),)
    assert hostname.virtual_hosts("a.lan", [("b.lan",)], ["a.lan", "*"]) == (VirtualHost("a.lan", ()),)


def test_hosts_of_other_listeners_are_misdirected():
    assert hostname.misdirected("*.lan", ["*", "a.lan", "*.lan"]) == ("a.lan", "*")


@pytest.mark.property
@given(hostnames, hostnames)
def test_containing_and_matching_are_those_of_sets_of_hosts(one, other):
    assert hostname.contains(one, other) == (_MEMBERS[other] <= _MEMBERS[one])
    assert hostname.matches(one, other) == bool(_MEMBERS[one] & _MEMBERS[other])
    assert hostname.matches(one, other) == hostname.matches(other, one)
    assert (one in hostname.containing(other)) == hostname.contains(one, other)


@pytest.mark.property
@given(hostnames, hostnames)
def test_what_two_have_in_common_is_in_both(one, other):
    shared = hostname.common(one, other)
    assert shared == hostname.common(other, one)
    assert (_MEMBERS[shared] if shared else set()) == _MEMBERS[one] & _MEMBERS[other]


@pytest.mark.property
@given(hostnames)
def test_those_around_a_hostname_come_in_their_order(name):
    around = hostname.containing(name)
    assert list(around) == sorted(around, key=hostname.precedence)


@pytest.mark.property
@given(ports, hosts)
def test_one_listener_owns_a_request_and_it_is_the_most_exact(port, host):
    candidates = [listener for listener in port if _covers(listener, host)]
    expected = min(candidates, key=lambda each: len(_MEMBERS[each]), default=None)
    assert hostname.owner(port, host) == expected


@pytest.mark.property
@given(ports, routes, hosts)
def test_a_request_finds_the_routes_of_its_owner_and_no_others(port, routes, host):
    """Envoy takes the most exact of all virtual hosts of a port; the long way asks listener and routes."""
    by_listener = {listener: hostname.virtual_hosts(listener, routes, port) for listener in port}
    found = [
        (virtual_host, listener)
        for listener, virtual_hosts in by_listener.items()
        for virtual_host in virtual_hosts
        if _covers(virtual_host.hostname, host)
    ]
    owners = [listener for listener in port if _covers(listener, host)]
    if not owners:
        assert found == []
        return
    exactness = [len(_MEMBERS[virtual_host.hostname]) for virtual_host, _ in found]
    assert exactness.count(min(exactness)) == 1
    virtual_host, listener = found[exactness.index(min(exactness))]
    assert listener == min(owners, key=lambda each: len(_MEMBERS[each]))
    best = {}
    for index, route in enumerate(routes):
        fitting = [each for each in route or [ANY] if _covers(each, host)]
        if fitting:
            best[index] = min(fitting, key=lambda each: len(_MEMBERS[each]))
    assert {each.index: each.hostname for each in virtual_host.routes} == best
    sizes = [(len(_MEMBERS[each.hostname]), each.index) for each in virtual_host.routes]
    assert sizes == sorted(sizes)


@pytest.mark.property
@given(st.text(alphabet="a.*-:[]", max_size=12), st.text(alphabet="a.*-:[]", max_size=12))
def test_no_text_makes_it_fail(one, other):
    normal = hostname.normal(one)
    assert hostname.contains(ANY, normal)
    assert hostname.matches(normal, hostname.of_authority(other)) in (True, False)
    assert hostname.containing(normal)[0] == normal
