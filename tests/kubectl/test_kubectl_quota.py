"""Quotas with kubectl: one limit, whichever endpoint a create goes through."""

import json

import pytest

from tests.kubectl.documents import timeout
from tests.waiting import eventually

pytestmark = pytest.mark.slow

KEY = "count/meshtimeouts.kuma.io"


def test_one_quota_limits_all_endpoints(kube):
    kube("create", "quota", "q", f"--hard={KEY}=2,count/meshtimeouts.koguma.io=2,count/apples=1")
    kube.applied(timeout("a"))
    kube.applied(timeout("b", version="koguma.io/v1"))
    for version, group in (("kuma.io/v1alpha1", "kuma.io"), ("koguma.io/v1", "koguma.io")):
        document = timeout("c", version=version)
        refused = kube.refused("create", "-f", "-", stdin=json.dumps(document))
        assert f'meshtimeouts.{group} "c" is forbidden: exceeded quota: q, requested: ' in refused
        assert f"{KEY}=1, used: " in refused
    eventually(lambda: kube.get("quota", "q")["status"].get("used", {}).get(KEY), "2")
    described = kube("describe", "quota", "q")
    assert [line.split() for line in described.splitlines() if KEY in line] == [[KEY, "2", "2"]]
    kube("delete", "meshtimeouts.koguma.io", "a")
    eventually(lambda: kube.get("quota", "q")["status"]["used"][KEY], "1")
    kube.applied(timeout("c"))
