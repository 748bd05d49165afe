"""Dataplane authentication: whether a token authorizes a proxy for the Dataplane that it claims to be.

A token always binds a mesh, and optionally a name, tags, a workload or a type. All its claims must be true of
the proxy. All mismatches are reported at once, claim by claim.
"""

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from koguma.identity import token_advice, tokens
from koguma.identity.claims import DATAPLANE, DataplaneClaims
from koguma.identity.signing_keys import KeyRing
from koguma.identity.tokens import VerifiedToken
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
    check_resource(verified_claims(ring, without_bearer(token), now), proxy)


def check_resource(claims: DataplaneClaims, proxy: Resource) -> None:
    """Raise Unauthenticated or Forbidden unless all claims are true of a Dataplane."""
    check(claims, proxy.mesh, proxy.core_name, tag_sets(proxy.spec), proxy.labels)


def verified_claims(ring: KeyRing[DataplaneClaims], token: str, now: datetime) -> DataplaneClaims:
    """The claims of a valid token of a proxy; else Unauthenticated, with the next step."""
    return verified_token(ring, token, now).claims


def verified_token(
    ring: KeyRing[DataplaneClaims], token: str, now: datetime
) -> VerifiedToken[DataplaneClaims]:
    """A valid token of a proxy that can be checked again later; else Unauthenticated."""
    try:
        return tokens.verified_token(ring, token, now)
    except Unauthenticated as error:
        raise token_advice.advised(error, token, DATAPLANE, ring.mesh) from error


def without_bearer(text: str) -> str:
    """The token in an `authorization` header or a file, without `Bearer` and surrounding space."""
    stripped = text.strip()
    if stripped[: len(_BEARER)].lower() == _BEARER:
        return stripped[len(_BEARER) :].strip()
    return stripped


def tag_sets(spec: Json) -> tuple[Mapping[str, str], ...]:
    """The tags of a Dataplane: a map for each inbound, and one for its gateway."""
    networking = spec.get("networking") or {}
    gateway = networking.get("gateway")
    tagged = [*(networking.get("inbound") or ()), *([gateway] if gateway else [])]
    return tuple(part.get("tags") or {} for part in tagged)


def check_name(claims: DataplaneClaims, proxy_mesh: str, proxy_name: str) -> None:
    """Raise unless the token is for a proxy of this name; the check before the Dataplane is known."""
    _raise_if_any(_name_violations(claims, proxy_mesh, proxy_name))


def check(
    claims: DataplaneClaims,
    proxy_mesh: str,
    proxy_name: str,
    tag_sets: Sequence[Mapping[str, str]],
    labels: Mapping[str, str],
) -> None:
    """Raise unless all claims are true of the proxy.

    A label counts as a tag, since it replaces one that an inbound does not have.
    """
    _raise_if_any(
        [
            *_name_violations(claims, proxy_mesh, proxy_name),
            *_tag_violations(claims.tags, (*tag_sets, labels)),
            *_workload_violations(claims.workload, labels.get(well_known.WORKLOAD)),
        ]
    )


class IdentityNotInToken(Forbidden):
    """A proxy registers a Dataplane whose certificate would contain an identity that its token does not."""

    def __init__(self, detail: str, command: str) -> None:
        """`command` issues a token that contains the identity."""
        super().__init__(f"{detail}; issue a token that does: {command}")
        self.command = command


def check_identity(claims: DataplaneClaims, proxy: Resource) -> None:
    """Raise unless the identity that a proxy would get is in its token.

    That is `kuma.io/service` as a tag or label, the label `kuma.io/workload`, and the name if it has none of
    these. A token for a service is valid for a workload of the same name, and the other way round.
    """
    in_token = {*claims.tags.get(tags.SERVICE, ()), claims.workload}
    services = {
        tagged[tags.SERVICE] for tagged in (*tag_sets(proxy.spec), proxy.labels) if tags.SERVICE in tagged
    }
    workload = proxy.labels.get(well_known.WORKLOAD, "")
    missing = [f'service "{service}"' for service in sorted(services - in_token)]
    if workload and workload != claims.workload and (claims.workload or workload not in in_token):
        missing.append(f'workload "{workload}"')
    if not services and not workload and claims.name != proxy.name:
        missing.append(f'"{proxy.name}"')
        if proxy.core_name != proxy.name:  # a token binds the core name, with the namespace
            services = {proxy.name}
            missing[-1] += f" (give its Dataplane the label {tags.SERVICE}: {proxy.name})"
    if missing:
        text = f"the token does not say that the proxy is {' and '.join(missing)}, as its certificate would"
        raise IdentityNotInToken(text, _command(proxy, services, workload))


def _command(proxy: Resource, services: Collection[str], workload: str) -> str:
    """The command that issues a token for a Dataplane."""
    flags = [f"--mesh {shlex.quote(proxy.mesh)}", f"--name {shlex.quote(proxy.core_name)}"]
    flags += [f"--service {shlex.quote(service)}" for service in sorted(services)]
    if workload and workload not in services:
        flags.append(f"--workload {shlex.quote(workload)}")
    return f"koguma token dataplane {' '.join(flags)} --valid-for 720h"


def _raise_if_any(violations: Iterable[Violation]) -> None:
    mismatches = tuple(violations)
    if any(violation.rule == "mesh" for violation in mismatches):
        # Signing keys belong to a mesh, so the bearer of a token of another mesh is not authenticated here.
        raise Unauthenticated(_message(mismatches), violations=mismatches)
    if mismatches:
        raise Forbidden(_message(mismatches), violations=mismatches)


def _message(violations: Sequence[Violation]) -> str:
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
