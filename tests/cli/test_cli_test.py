"""`koguma test`: cases beside objects, offline; failures name what happens instead, who set it and where."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

MESH = """\
type: Mesh
name: default
mtls: {enabledBackend: ca, backends: [{name: ca, type: builtin}]}
---
type: Dataplane
mesh: default
name: web-1
networking: {address: 10.0.0.1, inbound: [{port: 8080, tags: {kuma.io/service: web, kuma.io/protocol: http}}]}
---
type: Dataplane
mesh: default
name: backend-1
networking:
  address: 10.0.0.3
  inbound: [{port: 8080, tags: {kuma.io/service: backend, kuma.io/protocol: http}}]
---
type: Dataplane
mesh: default
name: backend-v2-1
networking:
  address: 10.0.0.4
  inbound: [{port: 8080, tags: {kuma.io/service: backend-v2, kuma.io/protocol: http}}]
---
type: MeshTrafficPermission
mesh: default
name: web-may
spec:
  targetRef: {kind: Mesh}
  from:
    - targetRef: {kind: MeshSubset, tags: {kuma.io/service: web}}
      default: {action: Allow}
    - targetRef: {kind: MeshSubset, tags: {kuma.io/service: backend}}
      default: {action: Deny}
---
type: MeshTimeout
mesh: default
name: quick
spec:
  to:
    - targetRef: {kind: MeshService, name: backend}
      default: {http: {requestTimeout: 5s}}
---
type: MeshHTTPRoute
mesh: default
name: beta
spec:
  to:
    - targetRef: {kind: MeshService, name: backend}
      rules:
        - matches: [{path: {type: PathPrefix, value: /v2}, headers: [{name: x-beta, value: "true"}]}]
          default:
            filters:
              - type: URLRewrite
                urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /}}
              - type: RequestHeaderModifier
                requestHeaderModifier: {set: [{name: x-team, value: beta}], remove: [x-beta]}
            backendRefs:
              - {kind: MeshService, name: backend-v2, port: 8080, weight: 9}
              - {kind: MeshService, name: backend, port: 8080, weight: 1}
        - matches: [{path: {type: Exact, value: /old}}]
          default:
            filters: [{type: RequestRedirect, requestRedirect: {hostname: new.lan, statusCode: 301}}]
"""
OLD = "request: {to: backend, path: /old?q}"
BETA = "from: web, request: {to: backend, path: /v2/x, headers: {x-beta: 'true'}}"


@pytest.fixture
def test(koguma, tmp_path, monkeypatch):
    """`koguma test shop` with some cases, each as the inside of a YAML mapping."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "mesh.yaml").write_text(MESH)

    def run(*cases: str, options: tuple[str, ...] = ()):
        lines = "".join(f"- {{{case}}}\n" for case in cases)
        (tmp_path / "shop" / "cases.yaml").write_text(f"type: MeshTest\nname: shop\ncases:\n{lines}")
        return koguma("test", "shop", *options)

    return run


PASSING = (
    f"{BETA}, expect: {{reaches: {{backend-v2: 90, backend: 10}}, timeout: 5s, retries: 5, path: /x}}",
    f"{BETA}, expect: {{headers: {{x-team: beta, x-beta: null}}, host: backend}}",
    "from: web, request: {to: backend}, expect: {reaches: backend, denied: false}",
    "from: web-1, request: {to: backend, port: 8080}, expect: {reaches: {backend-1: 100}}",
    "from: backend, request: {to: web}, expect: {denied: {by: web-may}}",
    "from: backend-v2, request: {to: web}, expect: {denied: true, status: 403}",
    f"from: web, {OLD}, expect: {{redirected: {{status: 301, location: 'http://new.lan/old?q'}}}}",
    "from: backend, request: {to: web}, expect: {outcome: denied}",
    "from: web, request: {to: backend}, expect: {reaches: {MeshService/backend: 100}}",
    "from: web, request: {to: backend}, expect: {reaches: dataplane/backend-1}",
    "from: backend, request: {to: web}, expect: {denied: {by: MeshTrafficPermission/web-may}}",
    "from: web, request: {to: backend}, expect: {mirrors: [], perTryTimeout: 16s, connectTimeout: 5s}",
)


def test_cases_that_pass(test):
    ended = test(*PASSING)
    assert ended.code == 0, ended.out
    assert ended.out.splitlines()[2] == "ok shop: web to backend: GET /"
    assert ended.err.startswith("12 cases, 0 failed; loaded in ")
    assert test(*PASSING, options=("--quiet",)).out == ""


@pytest.mark.parametrize(
    ("case", "texts"),
    [
        (
            f"{BETA}, expect: {{reaches: {{backend-v2: 100}}}}",
            (
                "shop/cases.yaml:4:97: expect.reaches: expected 100 % reaches backend-v2, but 90 % reaches",
                "90 % reaches backend-v2:8080, 10 % reaches backend:8080",
                "by route kri_mhttpr_default_default__beta_, shop/mesh.yaml:",
            ),
        ),
        (
            "from: web, request: {to: backend}, expect: {timeout: 10s}",
            (
                "expect.timeout: expected 10s, but 5s",
                "MeshTimeout http.requestTimeout = 5s, set by kri_mt_default_default__quick_, shop/mesh",
            ),
        ),
        (
            "from: web, request: {to: backend}, expect: {retries: 2}",
            ("expect.retries: expected 2, but 5", "which comes with the mesh"),
        ),
        (
            "from: backend, request: {to: web}, expect: {reaches: web}",
            (
                "expected 100 % reaches web, but denied by web-may with 403",
                "decided by kri_mtp_default_default__web-may_, shop/mesh.yaml:",
            ),
        ),
        (
            "from: web, request: {to: backend}, expect: {denied: {by: web-may}}",
            ("expect.denied: expected it is denied, but reaches backend:8080",),
        ),
        (
            "from: backend-v2, request: {to: web}, expect: {denied: {by: web-may}}",
            ("expected web-may, but no-permission(deny-by-default)",),
        ),
        (
            f"{BETA}, expect: {{headers: {{x-team: alpha}}}}",
            ("expect.headers.x-team: expected alpha, but beta", "MeshHTTPRoute filters = ["),
        ),
        (
            "from: web, request: {to: nowhere}, expect: {reaches: nowhere}",
            ('mesh "default" has no service, gateway or proxy "nowhere"',),
        ),
        ("from: web, request: {to: backend}, expect: {status: 418}", ("expected 418, but the answer",)),
        (
            "from: web, request: {to: backend}, expect: {reaches: MeshExternalService/backend}",
            ("expected 100 % reaches extsvc/backend, but reaches backend:8080",),
        ),
        (
            "from: backend, request: {to: web}, expect: {denied: {by: MeshTimeout/web-may}}",
            ("expected mt/web-may, but kri_mtp_default_default__web-may_",),
        ),
        (
            "from: web, request: {to: backend}, expect: {reaches: MeshSrvice/backend}",
            ('expected an object, but "MeshSrvice" in "MeshSrvice/backend" is no kind',),
        ),
        (
            f"from: web, {OLD}, expect: {{timeout: 5s, retries: 5, mirrors: [a]}}",
            (
                "expect.timeout: expected 5s, but redirected by beta with 301",
                "expect.retries: expected 5, but redirected",
                "expect.mirrors: expected a, but redirected",
            ),
        ),
        (
            "from: backend, request: {to: web}, expect: {path: /, host: web, headers: {x-a: null}}",
            (
                "expect.path: expected /, but denied by web-may with 403",
                "decided by kri_mtp_default_default__web-may_, shop/mesh.yaml:",
                "expect.host: expected web, but denied",
                "expect.headers.x-a: expected absent, but denied",
            ),
        ),
    ],
)
def test_failures_say_why(test, case, texts):
    ended = test(case)
    assert ended.code == 2
    assert ended.out.startswith("FAIL shop: ")
    for text in texts:
        assert text in ended.out
    assert ended.err.startswith("1 cases, 1 failed")


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("from: web, request: {to: backend}", "cases[0].expect"),
        ("from: web, request: {to: backend}, expect: {}", "cases[0].expect: expects nothing"),
        ("from: web, request: {to: b}, expect: {reches: b}", 'did you mean "reaches"'),
        ("from: web, request: {to: b, path: x}, expect: {denied: true}", "must start with a slash"),
        ("from: web, request: {to: b, method: G T}, expect: {denied: true}", "must be a method such as GET"),
        ("from: web, request: {to: b}, expect: {timeout: soon}", 'must be a duration such as 5s, not "soon"'),
        ("from: web, request: {to: b}, expect: {reaches: {a: 60, b: 60}}", "more than 100 percent"),
        ("from: web, request: {to: b}, expect: {reaches: b, denied: true}", "reaches nothing"),
        ("from: web, request: {to: b}, expect: {reaches: {}}", "must name who gets the requests"),
        ("from: web, request: {to: b}, expect: {reaches: {b: -1}}", "a share of 0 to 100 percent"),
    ],
)
def test_cases_that_cannot_be_read_are_errors_with_places(test, case, text):
    ended = test(case)
    assert (ended.code, ended.out) == (1, "")
    assert "the cases cannot be read\nshop/cases.yaml:" in ended.err
    assert text in ended.err


def test_no_cases_and_refused_objects_are_errors(test, koguma, tmp_path):
    assert "there are no cases in shop" in koguma("test", "shop").err
    (tmp_path / "shop" / "odd.yaml").write_text(
        "type: MeshTimeout\nname: odd\nmesh: default\nspec: {to: 1}\n"
    )
    ended = test(PASSING[0])
    assert ended.code == 1
    assert "the files hold objects that would be refused\nshop/odd.yaml:4" in ended.err


def test_results_for_machines(test, tmp_path):
    ended = test(
        PASSING[0], "from: web, request: {to: backend}, expect: {timeout: 9s}", options=("-o", "json")
    )
    passed, failed = json.loads(ended.out)["cases"]
    assert passed["passed"]
    assert failed["failures"][0]["field"] == "expect.timeout"
    test(
        *PASSING[:2], "from: web, request: {to: web}, expect: {denied: true}", options=("--junit", "out.xml")
    )
    suite = ET.parse(tmp_path / "out.xml").getroot()[0]
    assert suite.attrib == {"name": "shop", "tests": "3", "failures": "1"}
    assert suite[2][0].tag == "failure"
    assert suite[2].attrib["file"] == "shop/cases.yaml"


def test_the_example_passes(koguma):
    examples = Path(__file__).parents[2] / "examples"
    ended = koguma("test", str(examples / "shop"), str(examples / "dataplanes.yaml"))
    assert (ended.code, ended.out.count("ok shop: ")) == (0, 2), ended.out


def test_other_commands_leave_cases_out(test, koguma):
    test(PASSING[0])
    ended = koguma("lint", "-f", "shop")
    assert "MeshTest" not in ended.out + ended.err
    assert ended.err.startswith("7 objects")
