"""Which policies are refused, warned about and accepted, and which spellings are read as the same."""

import copy

import pytest

from tests.policies import policy_cases
from tests.policies.policy_cases import Case

FIELDS = {
    *("case", "spec", "here", "rule", "match", "filters", "conf", "to"),
    *("namespace", "allowProxyDataSources", "refused", "warned"),
}
JUDGED = policy_cases.cases("validation", "seeds")
ACCEPTED = tuple(parameter for parameter in JUDGED if "refused" not in parameter.values[1])


@pytest.mark.parametrize(("policy", "case"), JUDGED)
def test_a_policy_is_judged_as_its_case_says(policy: str, case: Case) -> None:
    found = policy_cases.violations(policy_cases.kind_of(policy), case)
    assert [f"{field}: {message}" for field, message in found] == case.get("refused", [])
    assert set(case) <= FIELDS


@pytest.mark.parametrize(("policy", "case"), ACCEPTED)
def test_a_policy_is_warned_about_as_its_case_says(policy: str, case: Case) -> None:
    assert policy_cases.warnings(policy_cases.kind_of(policy), case) == case.get("warned", [])


@pytest.mark.parametrize(("policy", "case"), policy_cases.cases("spellings"))
def test_a_spelling_is_read_as_the_clean_shape(policy: str, case: Case) -> None:
    kind = policy_cases.kind_of(policy)
    written = copy.deepcopy(case["spec"])

    assert kind.clean(written) == case["read"]
    assert written == case["spec"]
    assert kind.clean(case["read"]) is case["read"]
