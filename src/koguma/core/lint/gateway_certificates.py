"""Gateway certificates: those that a listener cannot present, and those that clients will refuse.

Dates are judged only where the caller knows the time. Whoever lints files may not have the Secrets, and a
mesh on a control plane always has one, the key that signs its tokens: where there is none at all, nothing is
said about what is missing. The same holds for certificates in the object itself that the reader may not see.
"""

from collections.abc import Iterator
from datetime import datetime

from koguma.core import gateways, world
from koguma.core.build import gateway_certificates, mesh_secret
from koguma.core.build.gateway_certificates import HIDDEN, CertificateProblem, PresentedCertificate
from koguma.core.gateways import GATEWAY, Listener
from koguma.core.incremental import Db
from koguma.core.lint.problem import BAD_CERTIFICATE, Problem
from koguma.model import tls_certificate
from koguma.model.resource import Key


def of_gateway(db: Db, gateway: Key, now: datetime | None = None) -> Iterator[Problem]:
    """What is wrong with the certificates of a MeshGateway."""
    for listener in gateways.listeners(db, gateway):
        if not listener.ends_tls:
            continue
        certificates = gateway_certificates.of(db, gateway, listener.section)
        is_refusing = not certificates.secrets
        for problem in certificates.problems:
            if not _is_unknown(db, gateway, problem):
                yield _not_presented(db, gateway, listener, problem, is_refusing=is_refusing)
        for presented in gateway_certificates.presented(db, gateway, listener.section):
            yield from _refused_by_clients(db, gateway, listener, presented, now)


def ending(db: Db, gateway: Key, now: datetime) -> Iterator[Problem]:
    """Certificates of a MeshGateway that expire soon."""
    for listener in gateways.listeners(db, gateway):
        for each in gateway_certificates.presented(db, gateway, listener.section):
            if tls_certificate.ends_soon(each.not_before, each.not_after, now):
                message = (
                    f"the certificate of listener {listener.section} of {gateway} expires at"
                    f" {each.not_after:%Y-%m-%dT%H:%M:%SZ}: {each.source}; write a new one"
                )
                yield Problem(BAD_CERTIFICATE, message, _objects(db, gateway, each.secret), path=each.path)


def of_secret(db: Db, secret: Key, now: datetime | None = None) -> Iterator[Problem]:
    """What is wrong with the certificate in a Secret, by each MeshGateway that presents it."""
    for gateway in world.BY_KIND.keys(db, (GATEWAY, secret.mesh)):
        yield from (problem for problem in of_gateway(db, gateway, now) if secret in problem.objects)


def _is_unknown(db: Db, gateway: Key, problem: CertificateProblem) -> bool:
    is_absent = (
        bool(problem.secret) and mesh_secret.key(db, gateway.mesh, gateway.zone, problem.secret) is None
    )
    return problem.reason == HIDDEN or (is_absent and not world.BY_KIND.keys(db, ("Secret", gateway.mesh)))


def _not_presented(
    db: Db, gateway: Key, listener: Listener, problem: CertificateProblem, *, is_refusing: bool
) -> Problem:
    effect = "refuses every connection, and others work" if is_refusing else "has one certificate less"
    message = f"listener {listener.section} of {gateway} {effect}: {problem}"
    return Problem(BAD_CERTIFICATE, message, _objects(db, gateway, problem.secret), path=problem.path)


def _refused_by_clients(
    db: Db, gateway: Key, listener: Listener, presented: PresentedCertificate, now: datetime | None
) -> Iterator[Problem]:
    dates = presented.not_before, presented.not_after
    date_problem = tls_certificate.date_problem(*dates, now) if now is not None else ""
    for reason in filter(None, (presented.name_problem, date_problem)):
        message = (
            f"clients of listener {listener.section} of {gateway} that verify it refuse its certificate:"
            f" {presented.source} {reason}; it is presented nevertheless"
        )
        yield Problem(BAD_CERTIFICATE, message, _objects(db, gateway, presented.secret), path=presented.path)


def _objects(db: Db, gateway: Key, secret: str) -> tuple[Key, ...]:
    key = mesh_secret.key(db, gateway.mesh, gateway.zone, secret) if secret else None
    return (gateway, key) if key is not None else (gateway,)
