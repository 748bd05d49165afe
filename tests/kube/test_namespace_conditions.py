"""Conditions of namespaces that are being emptied."""

from koguma.kube.namespace_conditions import RemainingObject, conditions

THEN, NOW = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"
HELD = RemainingObject("secrets.", ("example.com/a", "example.com/b"))
IN_USE = RemainingObject("configmaps.", ())


def by_type(*arguments):
    return {each["type"]: each for each in conditions(*arguments)}


def test_what_is_left_and_what_holds_it_is_counted():
    found = by_type((), [HELD, IN_USE, HELD], (), NOW)
    assert found["NamespaceContentRemaining"]["message"] == (
        "Some resources are remaining:"
        " configmaps. has 1 resource instances, secrets. has 2 resource instances"
    )
    assert found["NamespaceFinalizersRemaining"]["message"] == (
        "Some content in the namespace has finalizers remaining:"
        " example.com/a in 2 resource instances, example.com/b in 2 resource instances"
    )
    assert found["NamespaceDeletionContentFailure"]["status"] == "False"


def test_what_cannot_be_deleted_is_a_failure_with_its_reason():
    found = by_type((), [IN_USE], ["ConfigMap x: it is in use"], NOW)
    failure = found["NamespaceDeletionContentFailure"]
    assert (failure["status"], failure["reason"]) == ("True", "ContentDeletionFailed")
    assert failure["message"].endswith("1 remaining: ConfigMap x: it is in use")
    assert found["NamespaceFinalizersRemaining"]["reason"] == "ContentHasNoFinalizers"


def test_what_did_not_change_keeps_its_time_and_conditions_of_others_stay():
    other = {"type": "Seen", "status": "True", "lastTransitionTime": THEN}
    before = conditions((), [HELD], (), THEN)
    assert conditions([*before, other], [HELD], (), NOW) == [*before, other]
    after = by_type(before, [IN_USE], (), NOW)
    assert after["NamespaceContentRemaining"]["lastTransitionTime"] == THEN
    assert after["NamespaceFinalizersRemaining"]["lastTransitionTime"] == NOW
