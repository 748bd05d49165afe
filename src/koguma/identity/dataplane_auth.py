"""Dataplane authentication: whether a token lets a proxy be the Dataplane that it says it is.

A token binds as much as its issuer wanted: the mesh always, and a name, tags, a workload or a type where it
says so. Whatever it says must be true of the proxy. What does not fit is said all at once, claim by claim.
"""

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from koguma.identity import token_advice, tokens
from koguma.identity.claims import DATAPLANE, DataplaneClaims
from koguma.identity.signing_keys import KeyRing
from koguma.identity.tokens import ShownToken
from koguma.model import labels as well_known
from koguma.model import tags
from koguma.model.errors import Forbidden, Unauthenticated
from koguma.model.resource import Resource
from koguma.model.schema import Json
from koguma.model.violation import Violation, key

TYPE: Final = "dataplane"

_BEARER: Final = "bearer "


def authenticate(ring: KeyRing[DataplaneClaims], token: str, now: datetime, proxy: Resource) -> None:
    """Raise Unauthenticated or Forbidden unless the token is valid and is for this Dataplane."""
    check_resource(verified(ring, bare(token), now), proxy)


def check_resource(claims: DataplaneClaims, proxy: Resource) -> None:
    """Raise Unauthenticated or Forbidden unless everything that the token says is true of a Dataplane."""
    check(claims, proxy.mesh, proxy.core_name, tag_sets(proxy.spec), proxy.labels)


def verified(ring: KeyRing[DataplaneClaims], token: str, now: datetime) -> DataplaneClaims:
    """The claims of a proxy's token that holds; Unauthenticated with the next step where it does not."""
    return shown(ring, token, now).claims


def shown(ring: KeyRing[DataplaneClaims], token: str, now: datetime) -> ShownToken[DataplaneClaims]:
    """A proxy's token that holds, to be asked again later; Unauthenticated where it does not hold."""
    try:
        return tokens.shown(ring, token, now)
    except Unauthenticated as error:
        raise token_advice.advised(error, token, DATAPLANE, ring.mesh) from error


def bare(text: str) -> str:
    """The token in an `authorization` header or in a file: without `Bearer`, without space around it."""
    stripped = text.strip()
    if stripped[: len(_BEARER)].lower() == _BEARER:
        return stripped[len(_BEARER) :].strip()
    return stripped


def tag_sets(spec: Json) -> tuple[Mapping[str, str], ...]:
    """The tags of a Dataplane: a map for each inbound, and one for its gateway."""
    networking = spec.get("networking") or {}
    gateway = networking.get("gateway")
    parts = [*(networking.get("inbound") or ()), *([gateway] if gateway else [])]
    return tuple(part.get("tags") or {} for part in parts)


def check_name(claims: DataplaneClaims, proxy_mesh: str, proxy_name: str) -> None:
    """Raise unless the token is for a proxy of this name; all that can be said before the proxy is known."""
    _refuse(_name_violations(claims, proxy_mesh, proxy_name))


def check(
    claims: DataplaneClaims,
    proxy_mesh: str,
    proxy_name: str,
    tag_sets: Sequence[Mapping[str, str]],
    labels: Mapping[str, str],
) -> None:
    """Raise unless everything that the token says is true of the proxy.

    A label counts like a tag, since it stands for one where an inbound has none of that name.
    """
    _refuse(
        [
            *_name_violations(claims, proxy_mesh, proxy_name),
            *_tag_violations(claims.tags, (*tag_sets, labels)),
            *_workload_violations(claims.workload, labels.get(well_known.WORKLOAD)),
        ]
    )


class UnvouchedIdentity(Forbidden):
    """A proxy brings a Dataplane whose certificate would say more than its token does."""

    def __init__(self, detail: str, command: str) -> None:
        """Take the command that issues a token which is good for it."""
        super().__init__(f"{detail}; issue a token that does: {command}")
        self.command = command


def check_identity(claims: DataplaneClaims, proxy: Resource) -> None:
    """Raise unless what would become the identity of a proxy stands in its token.

    That is `kuma.io/service`, as a tag or as a label, the label `kuma.io/workload`, and the name where it
    has none of these. A token for a service or a workload is good for both words.
    """
    vouched = {*claims.tags.get(tags.SERVICE, ()), claims.workload}
    services = {each[tags.SERVICE] for each in (*tag_sets(proxy.spec), proxy.labels) if tags.SERVICE in each}
    workload = proxy.labels.get(well_known.WORKLOAD, "")
    missing = [f'service "{service}"' for service in sorted(services - vouched)]
    if workload and workload != claims.workload and (claims.workload or workload not in vouched):
        missing.append(f'workload "{workload}"')
    if not services and not workload and claims.name != proxy.name:
        missing.append(f'"{proxy.name}"')
        if proxy.core_name != proxy.name:  # a token binds the whole name, with the namespace
            services = {proxy.name}
            missing[-1] += f" (give its Dataplane the label {tags.SERVICE}: {proxy.name})"
    if missing:
        text = f"the token does not say that the proxy is {' and '.join(missing)}, as its certificate would"
        raise UnvouchedIdentity(text, _command(proxy, services, workload))


def _command(proxy: Resource, services: Collection[str], workload: str) -> str:
    """The command that issues a token for a Dataplane."""
    flags = [f"--mesh {shlex.quote(proxy.mesh)}", f"--name {shlex.quote(proxy.core_name)}"]
    flags += [f"--service {shlex.quote(service)}" for service in sorted(services)]
    if workload and workload not in services:
        flags.append(f"--workload {shlex.quote(workload)}")
    return f"koguma token dataplane {' '.join(flags)} --valid-for 720h"


def _refuse(violations: Iterable[Violation]) -> None:
    found = tuple(violations)
    if any(violation.rule == "mesh" for violation in found):
        # The keys are those of a mesh, so whoever has a token of another one is nobody here.
        raise Unauthenticated(_told(found), violations=found)
    if found:
        raise Forbidden(_told(found), violations=found)


def _told(violations: Sequence[Violation]) -> str:
    return "; ".join(violation.message for violation in violations)


def _name_violations(claims: DataplaneClaims, proxy_mesh: str, proxy_name: str) -> Iterator[Violation]:
    if claims.mesh != proxy_mesh:
        text = f"proxy mesh from requestor: {proxy_mesh} is different than in token: {claims.mesh}"
        yield Violation("mesh", text, "mesh")
    if claims.name and claims.name != proxy_name:
        text = f"proxy name from requestor: {proxy_name} is different than in token: {claims.name}"
        yield Violation("name", text, "name")
    if claims.type and claims.type != TYPE:
        text = f"proxy type from requestor: {TYPE} is different than in token: {claims.type}"
        yield Violation("type", text, "type")


def _tag_violations(
    allowed: Mapping[str, Sequence[str]], tag_sets: Sequence[Mapping[str, str]]
) -> Iterator[Violation]:
    for name in sorted(allowed):
        values = sorted({tags[name] for tags in tag_sets if name in tags})
        if not values:
            yield Violation(key("tags", name), f'dataplane has no tag "{name}" required by the token', "tag")
        listed = " ".join(f'"{value}"' for value in sorted(allowed[name]))
        for value in values:
            if value not in allowed[name]:
                text = (
                    f'dataplane contains tag "{name}" with value "{value}" which is not allowed with this'
                    f" token. Allowed values in token are [{listed}]"
                )
                yield Violation(key("tags", name), text, "tag")


def _workload_violations(bound: str, label: str | None) -> Iterator[Violation]:
    if not bound or bound == label:
        return
    field = key("labels", well_known.WORKLOAD)
    if label is None:
        yield Violation(field, "dataplane has no workload label required by the token", "workload")
        return
    text = (
        f'dataplane workload "{label}" is not allowed with this token. Allowed workload in token is "{bound}"'
    )
    yield Violation(field, text, "workload")
