"""Routes, as plain data and on a real Envoy: every sort of match and filter, seen in what services get."""

import socket
import tempfile
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml

from koguma.envoy import cors, route_filters, route_settings, routes, session_persistence
from koguma.envoy import filters as http_filters
from koguma.envoy.routes import Backend, BackendSplit
from tests.envoy import real_envoy
from tests.ports import free_port

FOLDER = Path(__file__).parent / "routes"
TO_A = BackendSplit((Backend("a", 1),))
SUBSETS = {
    "fallback_policy": "ANY_ENDPOINT",
    "subset_selectors": [{"keys": ["version"], "fallback_policy": "NO_FALLBACK"}],
}


def no_mirror(_ref: Any) -> None:
    return None


def cases() -> Iterator[Any]:
    for file in sorted(FOLDER.glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            yield pytest.param(document, id=f"{file.stem}: {document['case']}")


CASES = tuple(cases())


def host(index: int) -> str:
    return f"case-{index}.example"


def split(document: dict[str, Any]) -> BackendSplit:
    backends = document.get("backends", [{"cluster": "a", "weight": 1}])
    made = (
        Backend(**{**each, "subset": tuple(tuple(pair) for pair in each.get("subset", ()))})
        for each in backends
    )
    return BackendSplit(tuple(made), document.get("unresolved", 0))


def case_routes(document: dict[str, Any], file: str) -> list[Any]:
    filters = yaml.safe_load(yaml.safe_dump(document.get("filters", [])).replace("FILE", file))
    made = routes.routes("it", document.get("match", {}), filters, split(document), lambda ref: ref["name"])
    return [route_settings.applied(route, {**document, "filters": filters}) for route in made]


SESSION = {"type": "Cookie", "sessionName": "stay", "absoluteTimeout": "1h"}
EXTRA = {
    **{
        f"{name}-session.example": [
            route_settings.applied(route, {"sessionPersistence": session})
            for route in routes.routes("it", {}, [], BackendSplit((Backend("versions", 1),)), no_mirror)
        ]
        for name, session in {
            "cookie": {"type": "Cookie", "sessionName": "stay"},
            "permanent": {**SESSION, "cookieConfig": {"lifetimeType": "Permanent"}},
            "header": {"type": "Header", "sessionName": "x-stay"},
        }.items()
    },
    "mirror.example": routes.routes(
        "it",
        {"path": {"type": "Exact", "value": "/copied"}},
        [{"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "b"}, "percentage": "100"}}],
        TO_A,
        lambda ref: ref["name"],
    ),
    "mirrors.example": routes.routes(
        "it",
        {"path": {"type": "Exact", "value": "/twice"}},
        [
            {"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "b"}}},
            {"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "v1"}, "percentage": 0}},
            {
                "type": "RequestMirror",
                "requestMirror": {
                    "backendRef": {"name": "v2"},
                    "fraction": {"numerator": 1, "denominator": 2},
                },
            },
        ],
        TO_A,
        lambda ref: ref["name"],
    ),
    "split.example": routes.routes(
        "it", {}, [], BackendSplit((Backend("a", 1), Backend("b", 3)), unresolved=4), no_mirror
    ),
    "versions.example": routes.routes(
        "it",
        {},
        [],
        BackendSplit(
            (Backend("versions", 1, (("version", "v1"),)), Backend("versions", 1, (("version", "v2"),)))
        ),
        no_mirror,
    ),
    "connect.example": [
        *routes.routes("it", {"method": "CONNECT"}, [], TO_A, no_mirror),
        *routes.routes("it", {}, [], BackendSplit((Backend("b", 1),)), no_mirror),
    ],
}


class Setting:
    """An Envoy that has every case, each under its own host."""

    def __init__(self, port: int, services: dict[str, real_envoy.Service]) -> None:
        self.port = port
        self.services = services

    def call(self, ask: str, **more: Any) -> real_envoy.Answer:
        method, _, path = ask.partition(" ")
        return real_envoy.call(self.port, path, method, **more)


@pytest.fixture(scope="module")
def setting() -> Iterator[Setting]:
    port = free_port()
    with tempfile.TemporaryDirectory() as name, real_envoy.services("a", "b", "v1", "v2") as services:
        folder = Path(name)
        (folder / "body").write_text("in a file")
        hosts = {host(i): case_routes(case.values[0], str(folder / "body")) for i, case in enumerate(CASES)}
        made = [
            routes.virtual_host(each, found, (each, f"{each}:*"))
            for each, found in {**hosts, **EXTRA}.items()
        ]
        manager = real_envoy.hcm(
            routes.route_configuration("it", made),
            tuple(http_filters.http_chain(route_settings.FILTERS)),
            strip_any_host_port=True,
        )
        ports = {each: service.server_port for each, service in services.items()}
        clusters = [
            real_envoy.cluster("a", real_envoy.endpoint(ports["a"])),
            real_envoy.cluster("b", real_envoy.endpoint(ports["b"])),
            *(real_envoy.cluster(each, real_envoy.endpoint(ports[each])) for each in ("v1", "v2")),
            real_envoy.cluster("named", real_envoy.endpoint(ports["a"], "api.example.com")),
            real_envoy.cluster(
                "versions",
                *(real_envoy.endpoint(ports[version], version=version) for version in ("v1", "v2")),
                lb_subset_config=SUBSETS,
            ),
        ]
        listeners = [real_envoy.listener("it", port, manager)]
        with real_envoy.envoy(listeners, clusters, folder, {"KOGUMA_TEST_WORD": "in a variable"}):
            yield Setting(port, services)


def differences(expected: dict[str, Any], got: real_envoy.Answer, named: str) -> Iterator[str]:
    """What a call got, where it is not what the case says."""
    if got.status != expected.get("status", 200):
        yield f"status {got.status}"
        return
    for name, values in expected.get("shows", {}).items():
        if got.headers.get(name) != [value.replace("SAME", named) for value in values]:
            yield f"shows {name}: {got.headers.get(name)}"
    yield from (f"shows {name}" for name in expected.get("hides", ()) if name in got.headers)
    if "body" in expected and got.body.decode() != expected["body"]:
        yield f"body {got.body!r}"
    if got.status == 200 and "body" not in expected:
        yield from service_differences(expected, got.seen, named)


def service_differences(expected: dict[str, Any], seen: dict[str, Any], named: str) -> Iterator[str]:
    headers = seen["headers"]
    for name, values in expected.get("sees", {}).items():
        if headers.get(name) != values:
            yield f"sees {name}: {headers.get(name)}"
    yield from (f"sees {name}" for name in expected.get("lacks", ()) if name in headers)
    wanted = {
        "path": expected.get("path", seen["path"]),
        "host": expected.get("host", headers["host"][0]).replace("SAME", named),
        "service": expected.get("service", seen["service"]),
    }
    found = {"path": seen["path"], "host": headers["host"][0], "service": seen["service"]}
    yield from (f"{name} is {found[name]}" for name in wanted if wanted[name] != found[name])


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(CASES)), ids=[case.id for case in CASES])
def test_a_route_does_what_its_case_says(setting: Setting, index: int) -> None:
    document, named = CASES[index].values[0], host(index)
    for expected in document["calls"]:
        got = setting.call(expected["ask"], host=named, headers=expected.get("with"))
        assert list(differences(expected, got, named)) == [], expected
        assert set(expected) <= {
            "ask", "with", "status", "path", "host", "service", "sees", "lacks", "shows", "hides", "body",
        }  # fmt: skip


@pytest.mark.slow
def test_a_copy_of_a_request_reaches_its_mirror(setting: Setting) -> None:
    before = len(setting.services["b"].seen)
    for _ in range(5):
        assert setting.call("GET /copied", host="mirror.example").seen["service"] == "a"
    for _ in range(5000):
        if len(setting.services["b"].seen) == before + 5:
            break
        setting.call("GET /copied/not", host="mirror.example")  # the copies are on their way
    assert [each["path"] for each in setting.services["b"].seen[before:]] == ["/copied"] * 5


@pytest.mark.slow
def test_each_of_several_mirrors_gets_its_own_share(setting: Setting) -> None:
    before = {name: len(service.seen) for name, service in setting.services.items()}

    def copies(name: str) -> int:
        return sum(each["path"] == "/twice" for each in setting.services[name].seen[before[name] :])

    for _ in range(200):
        assert setting.call("GET /twice", host="mirrors.example").seen["service"] == "a"
    for _ in range(5000):
        if copies("b") == 200:
            break
        setting.call("GET /not", host="mirrors.example")  # the copies are on their way
    assert copies("b") == 200
    assert copies("v1") == 0
    assert 60 < copies("v2") < 140


@pytest.mark.slow
def test_a_client_stays_with_the_endpoint_that_its_cookie_names(setting: Setting) -> None:
    first = setting.call("GET /", host="cookie-session.example")
    (cookie,) = first.headers["set-cookie"]
    assert cookie.startswith("stay=")
    assert "Max-Age" not in cookie
    back = {"cookie": cookie.partition(";")[0]}
    again = [setting.call("GET /", host="cookie-session.example", headers=back) for _ in range(20)]
    assert {each.seen["service"] for each in again} == {first.seen["service"]}
    others = {setting.call("GET /", host="cookie-session.example").seen["service"] for _ in range(20)}
    assert others == {"v1", "v2"}


@pytest.mark.slow
def test_a_permanent_cookie_ends_when_the_session_does(setting: Setting) -> None:
    (cookie,) = setting.call("GET /", host="permanent-session.example").headers["set-cookie"]
    assert "Max-Age=3600" in cookie


@pytest.mark.slow
def test_a_client_stays_with_the_endpoint_that_its_header_names(setting: Setting) -> None:
    first = setting.call("GET /", host="header-session.example")
    (session,) = first.headers["x-stay"]
    again = [
        setting.call("GET /", host="header-session.example", headers={"x-stay": session}) for _ in range(20)
    ]
    assert {each.seen["service"] for each in again} == {first.seen["service"]}


def test_what_envoy_cannot_do_for_sessions_and_cors_is_reported() -> None:
    permanent = {"cookieConfig": {"lifetimeType": "Permanent"}}
    assert list(session_persistence.problems({"absoluteTimeout": "1h", **permanent})) == []
    assert [field for field, _ in session_persistence.problems(SESSION)] == ["absoluteTimeout"]
    header = {"type": "Header", "absoluteTimeout": "1h", "idleTimeout": "1m"}
    assert [field for field, _ in session_persistence.problems(header)] == ["absoluteTimeout", "idleTimeout"]
    assert [field for field, _ in cors.problems({"allowCredentials": True, "exposeHeaders": ["*"]})] == [
        "exposeHeaders"
    ]
    assert list(cors.problems({"exposeHeaders": ["*"]})) == []


@pytest.mark.slow
def test_requests_are_split_by_weight_and_what_leads_nowhere_fails(setting: Setting) -> None:
    got: Counter[str] = Counter()
    for _ in range(600):
        answer = setting.call("GET /", host="split.example")
        got[answer.seen["service"] if answer.status == 200 else str(answer.status)] += 1
    assert set(got) == {"a", "b", "500"}
    assert 240 < got["500"] < 360  # half, and far beyond any chance
    assert 40 < got["a"] < 115  # an eighth


@pytest.mark.slow
def test_subsets_of_one_cluster_share_its_requests(setting: Setting) -> None:
    got = Counter(setting.call("GET /", host="versions.example").seen["service"] for _ in range(200))
    assert set(got) == {"v1", "v2"}
    assert 60 < got["v1"] < 140


@pytest.mark.slow
def test_a_connect_request_is_taken_by_its_own_route(setting: Setting) -> None:
    with socket.create_connection(("127.0.0.1", setting.port), timeout=60) as connection:
        connection.sendall(b"CONNECT connect.example:80 HTTP/1.1\r\nhost: connect.example:80\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    assert setting.services["a"].seen[-1]["method"] == "CONNECT"
    assert setting.call("GET /", host="connect.example").seen["service"] == "b"


def test_a_prefix_is_two_routes_with_one_name() -> None:
    made = routes.routes("kri", {"path": {"type": "PathPrefix", "value": "/foo"}}, [], TO_A, no_mirror)
    assert made == [
        {
            "match": match,
            "name": "kri",
            "stat_prefix": "kri",
            "route": {"cluster": "a", "timeout": "0s"},
        }
        for match in ({"path": "/foo"}, {"prefix": "/foo/"})
    ]


def test_a_lost_share_fails_before_the_rest_is_split() -> None:
    lost, rest = routes.routes("kri", {}, [], BackendSplit((Backend("a", 2),), unresolved=1), no_mirror)
    share = lost["match"]["runtime_fraction"]["default_value"]
    assert share == {"numerator": 333333, "denominator": "MILLION"}
    assert lost["direct_response"]["status"] == 500
    assert "runtime_fraction" not in rest["match"]


@pytest.mark.parametrize(
    ("share", "numerator", "denominator"),
    [
        (Fraction(1, 4), 25, "HUNDRED"),
        (Fraction(1, 8), 1250, "TEN_THOUSAND"),
        (Fraction(1, 64), 15625, "MILLION"),
        (Fraction(2, 3), 666667, "MILLION"),
    ],
)
def test_a_share_is_exact_where_envoy_can_say_it(share, numerator, denominator) -> None:
    said = {"default_value": {"numerator": numerator, "denominator": denominator}}
    assert route_filters.runtime_fraction(share) == said


def test_a_copy_for_nobody_is_not_made() -> None:
    filters = [{"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "gone"}}}]
    (made,) = routes.routes("kri", {}, filters, TO_A, no_mirror)
    assert "request_mirror_policies" not in made["route"]


def test_a_request_that_is_answered_is_not_copied() -> None:
    filters = [
        {"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "b"}}},
        {"type": "DirectResponse", "directResponse": {"status": 204}},
    ]
    asked = []
    (made,) = routes.routes("kri", {}, filters, TO_A, asked.append)
    assert made["direct_response"] == {"status": 204}
    assert asked == []


def test_one_subset_is_chosen_without_weights() -> None:
    (made,) = routes.routes("kri", {}, [], BackendSplit((Backend("a", 7, (("version", "v1"),)),)), no_mirror)
    assert made["route"] == {
        "cluster": "a",
        "metadata_match": {"filter_metadata": {"envoy.lb": {"version": "v1"}}},
        "timeout": "0s",
    }


def test_what_a_candidate_was_made_of_is_not_changed() -> None:
    filters = [{"type": "URLRewrite", "urlRewrite": {"hostname": "x.example"}}]
    match = {"path": {"type": "PathPrefix", "value": "/a"}}
    written = (yaml.safe_dump(filters), yaml.safe_dump(match))
    assert routes.routes("kri", match, filters, TO_A, no_mirror) == routes.routes(
        "kri", match, filters, TO_A, no_mirror
    )
    assert (yaml.safe_dump(filters), yaml.safe_dump(match)) == written
