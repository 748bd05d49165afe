"""Who may call, on a real Envoy: decisions, their names in answers and logs, planned denials."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koguma.envoy import rbac
from koguma.envoy.callers import Caller, UriSan
from koguma.envoy.rbac import Decision
from tests.envoy import real_envoy
from tests.envoy.some_certificates import Pair, call_as, certificate, mutual
from tests.ports import free_port

DOMAIN = "spiffe://default/"
INSPECTOR = {
    "name": "envoy.filters.listener.tls_inspector",
    "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector"
    },
}


def identity(text: str, **more: object) -> Caller:
    return Caller((UriSan(text, domain=DOMAIN, **more),))


DECISIONS = (
    Decision("Deny", "kri_no-bad", (Caller((UriSan("spiffe://default/bad"),)),)),
    Decision("AllowWithShadowDeny", "kri_plan", (identity("spiffe://default/old/", is_prefix=True),)),
    Decision("Allow", "kri_web", (identity("spiffe://default/web"), identity("spiffe://default/bad"))),
    Decision(
        "Allow", "kri_named", (Caller((UriSan("spiffe://default/cli", domain=DOMAIN),), "inner.example"),)
    ),
    Decision(
        "Allow",
        "kri_tags",
        (Caller((UriSan("kuma://team/a", domain=DOMAIN), UriSan("kuma://v/1", domain=DOMAIN))),),
    ),
)

NOBODY = "no-permission(deny-by-default)"

# URIs of the certificate, server name, who denies (None: nobody)
CALLERS = (
    (("spiffe://default/web",), "x", None),
    (("spiffe://default/other", "spiffe://default/web", "kuma://a/b"), "x", None),
    (("spiffe://default/web2",), "x", NOBODY),
    (("spiffe://default/bad",), "x", "kri_no-bad"),
    (("spiffe://default/web", "spiffe://default/bad"), "x", "kri_no-bad"),
    (("spiffe://default/old/one",), "x", None),
    (("spiffe://default/older",), "x", NOBODY),
    (("spiffe://default/cli",), "inner.example", None),
    (("spiffe://default/cli",), "x", NOBODY),
    (("spiffe://default/a", "kuma://team/a", "kuma://v/1"), "x", None),
    (("spiffe://default/a", "kuma://team/a", "kuma://v/12"), "x", NOBODY),
    # Names that another domain's CA could write into one URI, or beside its own.
    (("spiffe://elsewhere/x,spiffe://default/web",), "x", NOBODY),
    (("spiffe://elsewhere/x", "spiffe://default/web"), "x", NOBODY),
    (("kuma://x/y,spiffe://default/web", "spiffe://elsewhere/x"), "x", NOBODY),
    (("spiffe://elsewhere/x,kuma://team/a,kuma://v/1",), "x", NOBODY),
)


class Setting:
    """An Envoy with an inbound for requests and one for connections, and whoever calls it."""

    def __init__(self, envoy: real_envoy.Envoy, ca: Pair, ports: list[int], folder: Path) -> None:
        self.envoy = envoy
        self.ca = ca
        self.http, self.tcp = ports
        self.folder = folder

    def call(self, port: int, uris: tuple[str, ...], named: str, path: str = "/") -> real_envoy.Answer | None:
        """A call with a certificate; None where the connection was closed."""
        return call_as(certificate(uris, self.ca), port, self.folder, named, path)

    def logged(self, words: str) -> str:
        """The lines of Envoy's log with these words, as soon as there are some."""
        for _ in range(3000):
            found = [line for line in self.envoy.output.read_text().splitlines() if words in line]
            if found:
                return "\n".join(found)
            time.sleep(0.02)
        return ""


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    folder, ports, ca = tmp_path_factory.mktemp("rbac"), (free_port(), free_port()), certificate(())
    tls = mutual(ca)
    with real_envoy.services("a") as services:
        listeners = [http_listener(ports[0], tls), tcp_listener(ports[1], tls)]
        clusters = [real_envoy.cluster("a", real_envoy.endpoint(services["a"].server_port))]
        with real_envoy.envoy(listeners, clusters, folder) as envoy:
            yield Setting(envoy, ca, ports, folder)


def http_listener(port: int, tls: dict) -> dict:
    forbidden = {"match": {"path": "/forbidden"}, "direct_response": {"status": 403}}
    routes = [forbidden, {"match": {"prefix": "/"}, "route": {"cluster": "a"}}]
    config = {"name": "it", "virtual_hosts": [{"name": "it", "domains": ["*"], "routes": routes}]}
    manager = real_envoy.hcm(
        config,
        ({"name": "envoy.filters.http.rbac", "typed_config": rbac.http(DECISIONS)},),
        local_reply_config=rbac.denied_reply(),
        access_log=[rbac.denied_log()],
    )
    return {**real_envoy.listener("http", port, manager, **tls), "listener_filters": [INSPECTOR]}


def tcp_listener(port: int, tls: dict) -> dict:
    permission = {"name": "envoy.filters.network.rbac", "typed_config": rbac.network("kri_dp_it", DECISIONS)}
    proxy = {
        "name": "envoy.filters.network.tcp_proxy",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
            "stat_prefix": "it",
            "cluster": "a",
            "access_log": [rbac.denied_connection_log()],
        },
    }
    return {**real_envoy.listener("tcp", port, permission, proxy, **tls), "listener_filters": [INSPECTOR]}


@pytest.mark.slow
@pytest.mark.parametrize(("uris", "named", "denied_by"), CALLERS)
def test_a_request_is_let_in_or_told_who_denies_it(setting: Setting, uris, named, denied_by) -> None:
    got = setting.call(setting.http, uris, named)
    assert got is not None
    assert got.status == (403 if denied_by else 200)
    assert got.headers.get(rbac.DENIED_BY) == ([denied_by] if denied_by else None)


@pytest.mark.slow
@pytest.mark.parametrize(("uris", "named", "denied_by"), CALLERS)
def test_a_connection_is_let_in_or_closed(setting: Setting, uris, named, denied_by) -> None:
    got = setting.call(setting.tcp, uris, named)
    assert (got is None) == bool(denied_by)


@pytest.mark.slow
def test_another_403_names_nobody(setting: Setting) -> None:
    got = setting.call(setting.http, ("spiffe://default/web",), "x", "/forbidden")
    assert got is not None
    assert got.status == 403
    assert rbac.DENIED_BY not in got.headers


@pytest.mark.slow
def test_the_log_says_who_denied_a_request_without_its_query(setting: Setting) -> None:
    setting.call(setting.http, ("spiffe://default/bad",), "x", "/logged?secret=1")
    line = setting.logged("GET /logged")
    assert "kri_no-bad denied GET /logged from spiffe://default/bad (127.0.0.1)" in line
    assert "secret" not in line


@pytest.mark.slow
def test_the_log_says_who_denied_a_connection(setting: Setting) -> None:
    setting.call(setting.tcp, ("spiffe://default/stranger",), "x")
    setting.call(setting.tcp, ("spiffe://default/bad",), "x")
    assert setting.logged(f"{NOBODY} denied a connection from spiffe://default/stranger (127.0.0.1)")
    assert setting.logged("kri_no-bad denied a connection from spiffe://default/bad (127.0.0.1)")


@pytest.mark.slow
def test_a_planned_denial_is_counted_and_lets_in(setting: Setting) -> None:
    before = setting.envoy.stats("shadow_denied")
    assert setting.call(setting.http, ("spiffe://default/old/two",), "x") is not None
    assert setting.call(setting.tcp, ("spiffe://default/old/two",), "x") is not None
    assert setting.call(setting.http, ("spiffe://default/web",), "x") is not None
    after = setting.envoy.stats("shadow_denied")
    assert {name: after[name] - before[name] for name in after} == {
        "http.it.rbac.shadow_denied": 1,
        "kri_dp_it.rbac.shadow_denied": 1,
    }


def test_where_nobody_is_let_in_the_denial_has_the_default_name() -> None:
    assert rbac.deny_all()["matcher"]["on_no_match"]["action"]["typed_config"]["name"] == NOBODY
    assert rbac.deny_all_network("kri") == {**rbac.network("kri", ()), "stat_prefix": "kri"}
    assert "shadow_matcher" not in rbac.deny_all()


def test_what_follows_a_decision_about_everybody_is_left_out() -> None:
    everybody = Decision("Allow", "kri_all", (Caller(),))
    made = rbac.http((DECISIONS[0], everybody, DECISIONS[2]))["matcher"]
    assert len(made["matcher_list"]["matchers"]) == 1
    assert made["on_no_match"]["action"]["typed_config"]["name"] == "kri_all"
    assert made["on_no_match"]["action"]["typed_config"]["action"] == "ALLOW"


@pytest.mark.slow
@pytest.mark.parametrize(
    "decisions",
    [(), DECISIONS, (Decision("Deny", "", (Caller(),)),), (Decision("Allow", "kri", ()),)],
)
def test_envoy_takes_every_sort_of_decisions(decisions) -> None:
    config = {"name": "it", "virtual_hosts": []}
    manager = real_envoy.hcm(config, ({"name": "rbac", "typed_config": rbac.http(decisions)},))
    proxy = {"name": "rbac", "typed_config": rbac.network("kri", decisions)}
    assert real_envoy.validated([real_envoy.listener("it", 1, proxy, manager)], []) == ""
