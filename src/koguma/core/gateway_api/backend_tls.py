"""Backend TLS: how proxies speak TLS with a service that a BackendTLSPolicy targets.

Such a service is outside of the mesh's mTLS: what answers at its endpoints has a certificate of its own, and
gateways and sidecars alike check that. Of several policies for one port, one that names the port goes first,
then the oldest, then the first by name. A policy without any good CA lets calls fail: without its checks
nobody would know whom they reach.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from cryptography import x509

from koguma.core import world
from koguma.core.gateway_api import objects
from koguma.core.incremental import Db, question
from koguma.model import forms
from koguma.model.resource import Key
from koguma.model.schema import Json
from koguma.model.violation import item

KIND: Final = f"BackendTLSPolicy.{objects.GROUP}"
_CONFIG_MAP: Final = "ConfigMap.core"
_CA_KEY: Final = "ca.crt"
_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----", re.ASCII)

ACCEPTED: Final = "Accepted"
RESOLVED_REFS: Final = "ResolvedRefs"


class BackendTls(NamedTuple):
    """What proxies check of a service's certificate; with a problem, nobody may call it."""

    policy: Key
    hostname: str  # to ask for (SNI)
    names: tuple[str, ...]  # of which the certificate must have one
    ca: str = ""  # as PEM; the CAs of the proxy's machine where it is empty
    problem: str = ""


class PolicyCondition(NamedTuple):
    """A condition of a policy: whether it holds, the reason and a sentence."""

    type: str
    is_true: bool
    reason: str
    message: str


class _Service(NamedTuple):
    mesh: str
    namespace: str
    name: str


class _Target(NamedTuple):
    """A service, or one port of it, that a policy targets."""

    policy: Key
    section: str


class _CaProblem(NamedTuple):
    reason: str
    message: str


@question
def of(db: Db, destination: Key, section: str) -> BackendTls | None:
    """How proxies speak TLS with a port of a service; None where no policy targets it."""
    if destination.kind != "MeshService" or destination.zone not in ("", world.control_plane(db).zone):
        return None
    service = _Service(destination.mesh, destination.namespace, destination.name)
    targets = [each for each in _targets(db, service) if each.section in ("", section)]
    named = [each for each in targets if each.section]
    winner = next(iter(named or targets), None)
    return _backend_tls(db, winner.policy) if winner is not None else None


@question
def conditions(db: Db, policy: Key) -> tuple[PolicyCondition, ...]:
    """What is to be reported of a policy: whether it acts, and whether its CAs were found."""
    _, problems = _cas(db, policy)
    message = "; ".join(each.message for each in problems)
    if problems:
        resolved = PolicyCondition(RESOLVED_REFS, False, problems[0].reason, message)  # noqa: FBT003
    else:
        resolved = PolicyCondition(RESOLVED_REFS, True, RESOLVED_REFS, "all references were found")  # noqa: FBT003
    reason, message = _refusal(db, policy)
    accepted = PolicyCondition(ACCEPTED, not reason, reason or ACCEPTED, message or "the policy acts")
    return accepted, resolved


def _refusal(db: Db, policy: Key) -> tuple[str, str]:
    """Why a policy does not act: the reason and a sentence; both empty where it does."""
    targets = _own_targets(db, policy)
    found = [(service, section) for service, section in targets if _exists(db, service, section)]
    if not found:
        names = ", ".join(f"{service.namespace}/{service.name}" for service, _ in targets) or "none"
        return "TargetNotFound", f"spec.targetRefs: there is no such Service in its mesh: {names}"
    winners = [_first(db, service, section) for service, section in found]
    if policy not in winners:
        return "Conflicted", f"spec.targetRefs: {winners[0]} is older and targets the same"
    problem = _backend_tls(db, policy).problem
    return ("NoValidCACertificate", problem) if problem else ("", "")


def _first(db: Db, service: _Service, section: str) -> Key | None:
    return next((each.policy for each in _targets(db, service) if each.section == section), None)


def _exists(db: Db, service: _Service, section: str) -> bool:
    here = world.control_plane(db).zone
    keys = (Key("MeshService", service.mesh, zone, service.namespace, service.name) for zone in (here, ""))
    found = next((each for key in keys if (each := world.destination(db, key)) is not None), None)
    return found is not None and (not section or any(port.section == section for port in found.ports))


@question
def _targets(db: Db, service: _Service) -> tuple[_Target, ...]:
    """The policies that target a service, those that go first first."""
    return _by_service(db).get(service, ())


@question
def _by_service(db: Db) -> Mapping[_Service, tuple[_Target, ...]]:
    by_service: dict[_Service, list[_Target]] = {}
    for policy in sorted(world.BY_KIND_EVERYWHERE.keys(db, KIND), key=lambda key: _age(db, key)):
        for service, section in _own_targets(db, policy):
            by_service.setdefault(service, []).append(_Target(policy, section))
    return {service: tuple(targets) for service, targets in by_service.items()}


def _age(db: Db, policy: Key) -> tuple[str, str, str]:
    resource = world.RESOURCES.get(db, policy)
    return resource.creation_time if resource else "", policy.namespace, policy.name


@question
def _own_targets(db: Db, policy: Key) -> tuple[tuple[_Service, str], ...]:
    """The services that a policy names, with a port where it names one."""
    resource = world.RESOURCES.get(db, policy)
    if resource is None:
        return ()
    mesh, namespace = objects.mesh_of(db, resource), forms.key_namespace(policy.namespace)
    refs = objects.items(objects.fields(resource.spec).get("targetRefs"))
    return tuple(
        (_Service(mesh, namespace, objects.text(ref.get("name"))), objects.text(ref.get("sectionName")))
        for _, ref in refs
        if not ref.get("group") and ref.get("kind") == "Service"
    )


@question
def _backend_tls(db: Db, policy: Key) -> BackendTls:
    validation = _validation(db, policy)
    hostname = objects.text(validation.get("hostname"))
    alternatives = (
        objects.text(each.get("hostname")) or objects.text(each.get("uri"))
        for _, each in objects.items(validation.get("subjectAltNames"))
    )
    names = tuple(name for name in alternatives if name) or (hostname,)
    if validation.get("wellKnownCACertificates") == "System":
        return BackendTls(policy, hostname, names)
    ca, problems = _cas(db, policy)
    if ca:
        return BackendTls(policy, hostname, names, ca)
    text = "; ".join(each.message for each in problems) or "spec.validation: it names no CA"
    return BackendTls(policy, hostname, names, problem=text)


def _validation(db: Db, policy: Key) -> Mapping[str, Json]:
    resource = world.RESOURCES.get(db, policy)
    return objects.fields(objects.fields(resource.spec if resource else {}).get("validation"))


@question
def _cas(db: Db, policy: Key) -> tuple[str, tuple[_CaProblem, ...]]:
    """The CAs of a policy as PEM, and what is wrong with its references."""
    texts, problems = list[str](), list[_CaProblem]()
    for index, ref in objects.items(_validation(db, policy).get("caCertificateRefs")):
        found = _ca(db, policy.namespace, ref, item("spec.validation.caCertificateRefs", index))
        if isinstance(found, str):
            texts.append(found)
        else:
            problems.append(found)
    return "".join(texts), tuple(problems)


def _ca(db: Db, namespace: str, ref: Mapping[str, Json], path: str) -> str | _CaProblem:
    kind, name = objects.text(ref.get("kind")), objects.text(ref.get("name"))
    if ref.get("group") or kind != "ConfigMap":
        return _CaProblem("InvalidKind", f"{path}: {kind} cannot hold CAs; name a ConfigMap")
    resource = world.RESOURCES.get(db, Key(_CONFIG_MAP, "", "", namespace, name))
    if resource is None:
        return _CaProblem("InvalidCACertificateRef", f"{path}: there is no ConfigMap {namespace}/{name}")
    data = objects.fields(objects.fields(resource.spec).get("data"))
    blocks = list(_certificates(objects.text(data.get(_CA_KEY))))
    if not blocks:
        message = f"{path}: {_CA_KEY} of ConfigMap {namespace}/{name} holds no certificate as PEM"
        return _CaProblem("InvalidCACertificateRef", message)
    return "".join(f"{block}\n" for block in blocks)


def _certificates(text: str) -> Iterator[str]:
    for match in _CERTIFICATE.finditer(text):
        with contextlib.suppress(ValueError):
            x509.load_pem_x509_certificate(match[0].encode())
            yield match[0]
