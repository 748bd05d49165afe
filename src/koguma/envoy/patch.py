"""Patch: MeshProxyPatch's modifications, applied to encoded resources as the last step of a build.

Only resources that a modification matches are decoded, changed and encoded again; the others cost nothing.
The result is checked against Envoy's rules, as everything that is sent is. A modification that would break
them, or that cannot be applied, is left out of that resource and reported; the others are applied.

Each resource is patched by itself, so that its result can be kept whatever happens to the others.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from koguma.envoy.encode import Encoder, Unencodable
from koguma.envoy.patch_edits import Editor
from koguma.envoy.patch_messages import Messages, Unpatchable, unpatchable
from koguma.envoy.patch_modifications import (
    ModificationParser,
    ParsedModification,
    PatchProgram,
    PolicyModification,
)
from koguma.envoy.snapshot import TYPE_URLS, Failure, Id, XdsResource
from koguma.model.violation import Violation

ADDED: Final = "mesh-proxy-patch"  # the origin of what a modification adds, as in Kuma


class Outcome(msgspec.Struct, frozen=True):
    """A resource after modifications; None where it is removed."""

    resource: XdsResource | None
    policies: tuple[str, ...] = ()  # that changed it, in order
    failures: tuple[Failure, ...] = ()


class Patcher:
    """Applies modifications with the message types of one Envoy."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._messages = Messages(encoder.schema)
        self._parser = ModificationParser(encoder, self._messages)
        self._editor = Editor(self._messages)

    def program(self, modifications: Iterable[PolicyModification]) -> PatchProgram:
        """Modifications, parsed."""
        return self._parser.program(modifications)

    def outcome(
        self, modifications: Iterable[ParsedModification], resource: XdsResource, origin: str
    ) -> Outcome:
        """A resource after modifications, in order."""
        matching = [each for each in modifications if each.may_match(resource.id, origin)]
        if not matching:
            return Outcome(resource)
        try:
            return self._outcome(matching, resource, check_each=False)
        except Unencodable:
            return self._outcome(matching, resource, check_each=True)  # to find out which of them it is

    def _outcome(
        self, modifications: Sequence[ParsedModification], resource: XdsResource, *, check_each: bool
    ) -> Outcome:
        message = self._messages.parsed(TYPE_URLS[resource.type].rpartition("/")[2], resource.body)
        policies: dict[str, None] = {}
        failures: list[Failure] = []
        for modification in modifications:
            try:
                after = self._after(modification, resource, message)
                if check_each and after is not None and after is not message:
                    self._encoded(resource, after)
            except (Unpatchable, Unencodable) as error:
                failures.append(modification.failure(resource.id, _violations(error)))
                continue
            if after is not message:
                policies[modification.policy] = None
                message = after
            if message is None:
                return Outcome(None, tuple(policies), tuple(failures))
        patched = self._encoded(resource, message) if policies else resource
        return Outcome(patched, tuple(policies), tuple(failures))

    def _after(self, modification: ParsedModification, resource: XdsResource, message: Any) -> Any:
        """A message after a modification: the same object where it does not match, None where removed."""
        draft = type(message)()
        draft.CopyFrom(message)  # a modification that fails half way leaves no trace
        if not self._editor.edited(modification, resource.type, draft):
            return message
        if modification.removes_resource(resource.type):
            return None
        if draft.name != resource.name:
            raise unpatchable(
                f'must not change the name, which is "{resource.name}"; add another one instead'
            )
        return draft

    def _encoded(self, resource: XdsResource, message: Any) -> XdsResource:
        encoded = self._encoder.resource(
            resource.type, resource.name, self._messages.plain(message), resource.needs
        )
        return resource if encoded.version == resource.version else encoded


def _violations(error: Unpatchable | Unencodable) -> Iterator[Violation]:
    if isinstance(error, Unpatchable):
        yield from error.violations
        return
    for each in error.violations:
        yield Violation("", f"Envoy would refuse the result: {each.field}: {each.message}", each.rule)


class Patched(msgspec.Struct, frozen=True):
    """Several resources after modifications."""

    resources: Mapping[Id, XdsResource]
    policies: Mapping[Id, tuple[str, ...]]  # of each resource that was changed, added or removed
    failures: tuple[Failure, ...] = ()


def over(
    program: PatchProgram,
    resources: Mapping[Id, XdsResource],
    origin_of: Callable[[Id], str],
    outcome: Callable[[int, XdsResource, str], Outcome],
    *,
    is_home: bool = True,
) -> Patched:
    """Several resources after the modifications of a program.

    `outcome` gives a resource after all modifications but the first so many. Of the bundles of a proxy only
    one takes added resources (`is_home`); from the others, resources of the same names are removed.
    """
    added = program.added
    results: dict[Id, Outcome] = {}
    for id_, resource in resources.items():
        origin = origin_of(id_)
        if (number := added.get(id_)) is not None:
            results[id_] = Outcome(None, (program.modifications[number - 1].policy,))
        elif any(modification.may_match(id_, origin) for modification in program.modifications):
            results[id_] = outcome(0, resource, origin)
    if is_home:
        results |= {id_: _added(program, number, outcome) for id_, number in added.items()}
    failures = _together(failure for result in results.values() for failure in result.failures)
    return Patched(
        _with(resources, results),
        {id_: result.policies for id_, result in results.items() if result.policies},
        (*(program.failures if is_home else ()), *failures),
    )


def _added(
    program: PatchProgram, number: int, outcome: Callable[[int, XdsResource, str], Outcome]
) -> Outcome:
    """An added resource after the modifications that follow."""
    modification = program.modifications[number - 1]
    assert modification.added is not None, modification
    result = outcome(number, modification.added, ADDED)
    policies = tuple(dict.fromkeys((modification.policy, *result.policies)))
    return msgspec.structs.replace(result, policies=policies)


def _with(resources: Mapping[Id, XdsResource], results: Mapping[Id, Outcome]) -> Mapping[Id, XdsResource]:
    if not any(result.policies for result in results.values()):
        return resources
    new = {id_: result.resource for id_, result in results.items()}
    return {id_: resource for id_, resource in {**resources, **new}.items() if resource is not None}


def _together(failures: Iterable[Failure]) -> Iterator[Failure]:
    """Failures, each only once where many resources have the same."""
    shared: dict[tuple[str, str], list[Failure]] = {}
    for each in failures:
        shared.setdefault((each.origin, each.text), []).append(each)
    for first, *more in shared.values():
        text = f"{first.text} (the same for {len(more)} more)" if more else first.text
        yield msgspec.structs.replace(first, text=text)
