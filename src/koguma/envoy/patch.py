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
from koguma.envoy.patch_change import Change, Modification, Program, Reader
from koguma.envoy.patch_edits import Editor
from koguma.envoy.patch_messages import Messages, Unpatchable, unpatchable
from koguma.envoy.snapshot import TYPE_URLS, Failure, Id, XdsResource
from koguma.model.violation import Violation

ADDED: Final = "mesh-proxy-patch"  # the origin of what a modification adds, as in Kuma


class Outcome(msgspec.Struct, frozen=True):
    """What becomes of one resource: nothing where it is removed."""

    resource: XdsResource | None
    policies: tuple[str, ...] = ()  # that changed it, in order
    failures: tuple[Failure, ...] = ()


class Patcher:
    """Changes resources with the messages of one Envoy."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._messages = Messages(encoder.schema)
        self._reader = Reader(encoder, self._messages)
        self._editor = Editor(self._messages)

    def program(self, modifications: Iterable[Modification]) -> Program:
        """Modifications, read."""
        return self._reader.program(modifications)

    def outcome(self, changes: Iterable[Change], resource: XdsResource, origin: str) -> Outcome:
        """What changes, in order, make of a resource."""
        found = [change for change in changes if change.concerns(resource.id, origin)]
        if not found:
            return Outcome(resource)
        try:
            return self._outcome(found, resource, check_each=False)
        except Unencodable:
            return self._outcome(found, resource, check_each=True)  # to find out which of them it is

    def _outcome(self, changes: Sequence[Change], resource: XdsResource, *, check_each: bool) -> Outcome:
        message = self._messages.parsed(TYPE_URLS[resource.type].rpartition("/")[2], resource.body)
        policies: dict[str, None] = {}
        failures: list[Failure] = []
        for change in changes:
            try:
                after = self._after(change, resource, message)
                if check_each and after is not None and after is not message:
                    self._encoded(resource, after)
            except (Unpatchable, Unencodable) as error:
                failures.append(change.failure(resource.id, _violations(error)))
                continue
            if after is not message:
                policies[change.policy] = None
                message = after
            if message is None:
                return Outcome(None, tuple(policies), tuple(failures))
        made = self._encoded(resource, message) if policies else resource
        return Outcome(made, tuple(policies), tuple(failures))

    def _after(self, change: Change, resource: XdsResource, message: Any) -> Any:
        """A message after a change: the same one where it is not meant, none where it is removed."""
        draft = type(message)()
        draft.CopyFrom(message)  # a change that fails half way has not happened
        if not self._editor.edited(change, resource.type, draft):
            return message
        if change.removes_resource:
            return None
        if draft.name != resource.name:
            raise unpatchable(
                f'must not change the name, which is "{resource.name}"; add another one instead'
            )
        return draft

    def _encoded(self, resource: XdsResource, message: Any) -> XdsResource:
        made = self._encoder.resource(
            resource.type, resource.name, self._messages.plain(message), resource.needs
        )
        return resource if made.version == resource.version else made


def _violations(error: Unpatchable | Unencodable) -> Iterator[Violation]:
    if isinstance(error, Unpatchable):
        yield from error.violations
        return
    for each in error.violations:
        yield Violation("", f"Envoy would refuse the result: {each.field}: {each.message}", each.rule)


class Patched(msgspec.Struct, frozen=True):
    """What becomes of several resources."""

    resources: Mapping[Id, XdsResource]
    policies: Mapping[Id, tuple[str, ...]]  # of each that was changed, added or removed
    failures: tuple[Failure, ...] = ()


def over(
    program: Program,
    resources: Mapping[Id, XdsResource],
    origin_of: Callable[[Id], str],
    outcome: Callable[[int, XdsResource, str], Outcome],
    *,
    is_home: bool = True,
) -> Patched:
    """What a program makes of several resources.

    `outcome` gives what all changes but the first so many make of a resource. Of bundles that come together
    only one is the home of what is added; from the others it takes away what has the same name.
    """
    added = program.added
    results: dict[Id, Outcome] = {}
    for id_, resource in resources.items():
        origin = origin_of(id_)
        if (number := added.get(id_)) is not None:
            results[id_] = Outcome(None, (program.changes[number - 1].policy,))
        elif any(change.concerns(id_, origin) for change in program.changes):
            results[id_] = outcome(0, resource, origin)
    if is_home:
        results |= {id_: _added(program, number, outcome) for id_, number in added.items()}
    failures = _together(failure for result in results.values() for failure in result.failures)
    return Patched(
        _with(resources, results),
        {id_: result.policies for id_, result in results.items() if result.policies},
        (*(program.failures if is_home else ()), *failures),
    )


def _added(program: Program, number: int, outcome: Callable[[int, XdsResource, str], Outcome]) -> Outcome:
    """What becomes of a resource that a change adds, by that one and those after it."""
    change = program.changes[number - 1]
    assert change.added is not None, change
    result = outcome(number, change.added, ADDED)
    policies = tuple(dict.fromkeys((change.policy, *result.policies)))
    return msgspec.structs.replace(result, policies=policies)


def _with(resources: Mapping[Id, XdsResource], results: Mapping[Id, Outcome]) -> Mapping[Id, XdsResource]:
    if not any(result.policies for result in results.values()):
        return resources
    new = {id_: result.resource for id_, result in results.items()}
    return {id_: resource for id_, resource in {**resources, **new}.items() if resource is not None}


def _together(failures: Iterable[Failure]) -> Iterator[Failure]:
    """Failures, where one that many resources share is said once."""
    shared: dict[tuple[str, str], list[Failure]] = {}
    for each in failures:
        shared.setdefault((each.origin, each.text), []).append(each)
    for first, *more in shared.values():
        text = f"{first.text} (the same for {len(more)} more)" if more else first.text
        yield msgspec.structs.replace(first, text=text)
