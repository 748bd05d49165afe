"""Names that two definitions have: the older one keeps them, whichever control plane stored which."""

import msgspec

from koguma.application import custom_definitions
from koguma.kube.custom import endpoints
from koguma.model.resource import Resource
from tests.custom_resources import definition_spec


def definition(kind, second, **names):
    """A definition that was accepted when it was stored."""
    spec = definition_spec(kind=kind, names={"singular": kind.lower(), "listKind": f"{kind}List", **names})
    name = f"{kind.lower()}s.example.com"
    stored = Resource(
        kind=custom_definitions.STORED_AS,
        name=name,
        core_name=name,
        spec=spec,
        creation_time=f"2026-11-16T00:00:{second:02}Z",
        uid=name,
    )
    return msgspec.structs.replace(stored, status=custom_definitions.status_beside(stored, ()))


def test_of_two_that_were_accepted_at_once_the_younger_gives_way():
    older, younger = definition("Widget", 1, shortNames=["x"]), definition("Gadget", 2, shortNames=["x"])
    apart = definition("Other", 3)
    assert custom_definitions.in_doubt([younger, older, apart]) == [younger]
    status = custom_definitions.reviewed_status(younger, [older, younger, apart])
    condition = endpoints.condition(status, "NamesAccepted")
    assert (condition["status"], condition["reason"]) == ("False", "ShortNamesConflict")
    assert condition["message"] == '"x" is already in use'
    assert endpoints.is_true(status, "Established"), "what is served stays so"
    assert custom_definitions.reviewed_status(older, [older, younger]) == older.status


def test_one_that_waits_gets_its_names_when_they_are_free():
    holder = definition("Widget", 2)
    waiting = msgspec.structs.replace(definition("Gadget", 1, shortNames=["widget"]), status=None)
    waiting = msgspec.structs.replace(waiting, status=custom_definitions.status_beside(waiting, [holder]))
    assert endpoints.of_definition(waiting) == ()
    assert custom_definitions.in_doubt([holder, waiting]) == [waiting]
    assert custom_definitions.reviewed_status(waiting, [holder, waiting]) == waiting.status
    free = msgspec.structs.replace(waiting, status=custom_definitions.reviewed_status(waiting, [waiting]))
    assert [endpoint.plural for endpoint in endpoints.of_definition(free)] == ["gadgets"]


def test_a_definition_that_cannot_be_read_serves_nothing():
    broken = definition("Widget", 1)
    for spec in ({}, None, [], {"versions": 5}, {**broken.spec, "versions": [{"name": "v1"}]}):
        assert endpoints.of_definition(msgspec.structs.replace(broken, spec=spec)) == ()
