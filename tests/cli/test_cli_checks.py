"""What `koguma check` finds, and what it advises."""

import email.utils
import json
from datetime import UTC, datetime, timedelta

import pytest

from koguma import __version__
from koguma.cli import check, checks
from koguma.cli.checks import ERROR, OK, WARNING, CheckResult
from koguma.cli.client import ApiClient
from koguma.cli.target import ServerTarget
from koguma.model.redacted import Redacted

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
INDEX = {"product": "Koguma", "kogumaVersion": __version__, "mode": "zone"}
CONFIG = {"store": "sqlite:////d/koguma.db", "apiHost": "127.0.0.1", "localhostIsAdmin": False}
DENIED = {"status": 403, "title": "Access Denied", "detail": "no access rule allows it"}


def results_by_name(fake, token=None) -> dict[str, list[CheckResult]]:
    client = ApiClient(ServerTarget(fake.address, "a test", token))
    by_name: dict[str, list[CheckResult]] = {}
    for result in checks.all_checks(client, NOW):
        by_name.setdefault(result.name, []).append(result)
    return by_name


def healthy(fake, index=INDEX, skew=0, user="joe", config=CONFIG, checks=()) -> None:
    fake.answer(200, index, Date=email.utils.format_datetime(NOW + timedelta(seconds=skew)))
    fake.answer(200, {"status": "ready"})
    fake.answer(200, {"name": user, "groups": ["g"]})
    fake.answer(200, config)
    fake.answer(200, {"items": []}, Koguma_Revision="41")
    fake.answer(200, {"checks": list(checks)})


def statuses(by_name) -> dict[str, list[str]]:
    return {name: [result.status for result in results] for name, results in by_name.items()}


def test_a_healthy_server_is_fine_in_every_line(fake):
    healthy(fake, checks=[{"name": "migrations", "status": "ok", "message": "at 1"}])
    by_name = results_by_name(fake)
    names = ("reachable", "versions", "clock", "ready", "user", "store", "local admin", "server: migrations")
    assert statuses(by_name) == {name: [OK] for name in names}
    assert by_name["store"][0].message == "sqlite, revision 41"


def test_a_server_that_is_not_there_ends_the_check():
    client = ApiClient(ServerTarget("http://127.0.0.1:1", "a test"))
    (only,) = checks.all_checks(client, NOW)
    assert (only.name, only.status) == ("reachable", ERROR)
    assert "koguma cp run" in only.hint


@pytest.mark.parametrize(("skew", "status"), [(4, OK), (-60, WARNING), (600, ERROR)])
def test_clocks_that_are_apart_are_told(fake, skew, status):
    healthy(fake, skew=skew)
    assert statuses(results_by_name(fake))["clock"] == [status]


def test_another_version_is_told_with_what_to_install(fake):
    healthy(fake, index={**INDEX, "kogumaVersion": "9.9.9"})
    (result,) = results_by_name(fake)["versions"]
    assert (result.status, "koguma 9.9.9" in result.hint) == (WARNING, True)


def test_nobody_in_particular_is_advised_to_give_a_token(fake):
    healthy(fake, user="mesh-system:anonymous")
    (result,) = results_by_name(fake)["user"]
    assert (result.status, "--token-file" in result.hint) == (WARNING, True)


def test_who_may_not_see_the_settings_still_gets_the_rest(fake):
    fake.answer(200, INDEX)
    fake.answer(200, {"status": "ready"})
    fake.answer(200, {"name": "joe", "groups": []})
    fake.answer(403, DENIED)
    fake.answer(403, DENIED)
    by_name = statuses(results_by_name(fake))
    assert (by_name["settings"], by_name["server"]) == ([WARNING], [WARNING])


def test_a_port_that_should_listen_and_does_not_is_wrong(fake):
    healthy(fake, config={**CONFIG, "apiPort": int(fake.address.rpartition(":")[2]), "apiTlsPort": 1})
    ports = results_by_name(fake)["ports"]
    assert [result.status for result in ports] == [OK, ERROR]
    assert ports[1].hint


def test_a_port_without_tls_is_wrong(fake):
    healthy(fake, config={**CONFIG, "apiTlsPort": int(fake.address.rpartition(":")[2])})
    assert statuses(results_by_name(fake))["certificate"] == [ERROR]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"apiHost": "0.0.0.0"}, OK),
        ({"localhostIsAdmin": True}, WARNING),
        ({"apiHost": "0.0.0.0", "localhostIsAdmin": True}, WARNING),
    ],
)
def test_a_local_admin_by_address_alone_is_told(fake, changes, status):
    healthy(fake, config={**CONFIG, **changes})
    assert statuses(results_by_name(fake))["local admin"] == [status]


def test_a_store_that_forgets_is_told(fake):
    healthy(fake, config={**CONFIG, "store": "memory://"})
    assert statuses(results_by_name(fake))["store"] == [WARNING]


def test_the_servers_own_findings_are_passed_on(fake):
    healthy(fake, checks=[{"name": "store", "status": "error", "message": "is down", "hint": "start it"}])
    assert results_by_name(fake)["server: store"] == [
        CheckResult("server: store", ERROR, "is down", "start it")
    ]


def token(expires: datetime) -> Redacted:
    import base64

    claims = base64.urlsafe_b64encode(json.dumps({"exp": expires.timestamp()}).encode()).decode().rstrip("=")
    return Redacted(f"e30.{claims}.x")


@pytest.mark.parametrize(("days", "status"), [(-1, ERROR), (3, WARNING), (30, OK)])
def test_a_token_that_ends_is_told_before_it_does(fake, days, status):
    healthy(fake)
    assert statuses(results_by_name(fake, token(NOW + timedelta(days=days))))["token"] == [status]


def test_a_hint_is_printed_where_something_is_not_fine():
    assert list(check.lines(CheckResult("a", WARNING, "odd", "do this"))) == ["! a: odd", "    do this"]
    assert list(check.lines(CheckResult("a", OK, "good", "do this"))) == ["✓ a: good"]


def test_the_exit_code_says_whether_something_is_wrong(fake, koguma):
    ended = koguma("check", "--address", "http://127.0.0.1:1")
    assert ended.code == 1
    assert ended.out.splitlines()[-1] == "0 fine, 0 to look at, 1 wrong"
    healthy(fake)
    ended = koguma("check", "--address", fake.address, "-o", "json")
    assert json.loads(ended.out)["checks"][0]["name"] == "reachable"
