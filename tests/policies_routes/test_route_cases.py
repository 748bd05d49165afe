"""The data files of this folder: what is refused, accepted, warned about, and read as the same."""

import copy

import pytest
import route_cases


@pytest.mark.parametrize("case", route_cases.cases("refused"), ids=route_cases.title)
def test_it_is_refused_with_these_words(case: route_cases.Case) -> None:
    assert route_cases.violations(case) == case["refused"]


@pytest.mark.parametrize("case", route_cases.cases("accepted"), ids=route_cases.title)
def test_it_is_accepted(case: route_cases.Case) -> None:
    assert route_cases.violations(case) == []


@pytest.mark.parametrize("case", route_cases.cases("seeds"), ids=route_cases.title)
def test_the_founding_documents_example_is_accepted(case: route_cases.Case) -> None:
    assert route_cases.violations(case) == []


@pytest.mark.parametrize("case", route_cases.cases("warned"), ids=route_cases.title)
def test_it_is_legal_and_warned_about(case: route_cases.Case) -> None:
    assert route_cases.violations(case) == []
    assert route_cases.warnings(case) == case["warned"]


@pytest.mark.parametrize("case", route_cases.cases("spellings"), ids=route_cases.title)
def test_it_is_read_as_the_clean_shape(case: route_cases.Case) -> None:
    kind = route_cases.KINDS[case["kind"]]
    written = copy.deepcopy(case["spec"])

    assert kind.clean(written) == case["read"]
    assert written == case["spec"]
    assert kind.clean(case["read"]) is case["read"]
