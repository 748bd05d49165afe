"""The mTLS backends of a Mesh: all its CAs, read from Secrets and files.

Reading is expensive and needed often, so the result remembers its sources: it is current as long as the Mesh,
the Secrets and the files have not changed.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from koguma.identity import authority, proxy_certificates
from koguma.identity.authority import Authority, CaProblem, ReadCa
from koguma.kinds import mesh
from koguma.kinds.mesh import MeshMtlsBackend
from koguma.model.resource import Resource

Secrets = Callable[[str], Resource | None]  # a Secret of the mesh, by name

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class MtlsBackends(msgspec.Struct, frozen=True, eq=False):
    """The backends of a Mesh as they were read; while mTLS is off nothing is read."""

    mesh: Resource
    enabled: MeshMtlsBackend | None = None
    cas: Mapping[str, ReadCa] = {}  # by backend name
    secrets: Mapping[str, Resource | None] = {}
    files: Mapping[str, tuple[int, ...]] = {}

    def is_current(self, mesh: Resource, secrets: Secrets) -> bool:
        """Whether reading again would give the same."""
        return (
            self.mesh is mesh
            and all(secrets(name) is secret for name, secret in self.secrets.items())
            and all(_file_version(path) == version for path, version in self.files.items())
        )

    @property
    def lifetime(self) -> timedelta:
        """How long the certificates of proxies are valid."""
        return proxy_certificates.lifetime(self.enabled or MeshMtlsBackend())

    def configured(self, now: datetime) -> dict[str, Authority]:
        """The CAs to trust, by id."""
        authorities = (ca.authority for ca in self.cas.values())
        return {each.id: each for each in authorities if each is not None and each.is_valid(now)}

    def issuer(self, now: datetime) -> str:
        """The id of the CA of the enabled backend; empty if it cannot issue."""
        ca = self.cas.get((self.enabled and self.enabled.name) or "")
        issuer = ca.authority if ca else None
        return issuer.id if issuer is not None and issuer.signer and issuer.is_valid(now) else ""

    @property
    def changed_at(self) -> datetime:
        """When the Mesh, or a Secret that it references, was last written."""
        times = (each.modification_time for each in (self.mesh, *self.secrets.values()) if each)
        return max(datetime.fromisoformat(text) if text else _EPOCH for text in times)

    def next_date(self, now: datetime) -> datetime | None:
        """When the next CA becomes valid or expires."""
        authorities = (ca.authority for ca in self.cas.values() if ca.authority)
        return min(
            (at for each in authorities for at in (each.not_before, each.not_after) if at > now), default=None
        )

    def problems(self, now: datetime) -> Iterator[CaProblem]:
        """The problems of all CAs, backend by backend."""
        for name, ca in self.cas.items():
            dates = authority.date_problems(ca.authority, now) if ca.authority else ()
            for text in (*ca.problems, *dates):
                yield CaProblem(self.mesh.name, name, text)


def read(resource: Resource, secrets: Secrets) -> MtlsBackends:
    """Read the backends of a Mesh."""
    mtls = mesh.mtls_of(resource.spec)
    backends = mtls.backends or ()
    enabled = next(
        (backend for backend in backends if mtls.enabled_backend and backend.name == mtls.enabled_backend),
        None,
    )
    if enabled is None:
        return MtlsBackends(resource)
    names, files = _sources(resource.name, backends)
    read_secrets = {name: secrets(name) for name in names}
    data = {
        name: str(secret.spec.get("data") or "")
        for name, secret in read_secrets.items()
        if secret is not None
    }
    return MtlsBackends(
        mesh=resource,
        enabled=enabled,
        cas={backend.name or "": authority.read(resource.name, backend, data.get) for backend in backends},
        secrets=read_secrets,
        files=files,
    )


def _sources(
    mesh_name: str, backends: tuple[MeshMtlsBackend, ...]
) -> tuple[list[str], dict[str, tuple[int, ...]]]:
    """The names of the Secrets, and the versions of the files before they are read."""
    sources = [source for backend in backends for source in authority.sources(mesh_name, backend)]
    names = [source.secret for source in sources if source.secret]
    return names, {source.file: _file_version(source.file) for source in sources if source.file}


def _file_version(path: str) -> tuple[int, ...]:
    """Changes whenever the file does; empty if there is none."""
    try:
        stats = Path(path).stat()
    except (OSError, ValueError):
        return ()
    return stats.st_ino, stats.st_mtime_ns, stats.st_size
