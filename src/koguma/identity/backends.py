"""Backends: the CAs that a Mesh lists, read together from where they lie.

Reading is dear and happens often, so what was read remembers what it was read from: it is current as long as
the Mesh, the Secrets and the files are the same.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from koguma.identity import authority, leaves
from koguma.identity.authority import Authority, Problem, Reading
from koguma.kinds import mesh
from koguma.kinds.mesh import MeshMtlsBackend
from koguma.model.resource import Resource

Secrets = Callable[[str], Resource | None]  # a Secret of the mesh, by name

_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Backends(msgspec.Struct, frozen=True, eq=False):
    """What the backends of a Mesh were when they were read; nothing is read while mTLS is off."""

    mesh: Resource
    enabled: MeshMtlsBackend | None = None
    readings: Mapping[str, Reading] = {}  # by the name of the backend
    secrets: Mapping[str, Resource | None] = {}
    files: Mapping[str, tuple[int, ...]] = {}

    def is_current(self, mesh: Resource, secrets: Secrets) -> bool:
        """Whether reading again would find the same."""
        return (
            self.mesh is mesh
            and all(secrets(name) is found for name, found in self.secrets.items())
            and all(_stamp(path) == stamp for path, stamp in self.files.items())
        )

    @property
    def lifetime(self) -> timedelta:
        """How long certificates of proxies are valid."""
        return leaves.lifetime(self.enabled or MeshMtlsBackend())

    def listed(self, now: datetime) -> dict[str, Authority]:
        """The CAs that are to be trusted, by id."""
        found = (reading.authority for reading in self.readings.values())
        return {each.id: each for each in found if each is not None and each.is_valid(now)}

    def issuer(self, now: datetime) -> str:
        """The id of the CA that is to issue; empty where it cannot."""
        reading = self.readings.get((self.enabled and self.enabled.name) or "")
        found = reading.authority if reading else None
        return found.id if found is not None and found.signer and found.is_valid(now) else ""

    @property
    def written(self) -> datetime:
        """When the Mesh, or a Secret that it names, was last written."""
        times = (each.modification_time for each in (self.mesh, *self.secrets.values()) if each)
        return max(datetime.fromisoformat(text) if text else _LONG_AGO for text in times)

    def next_date(self, now: datetime) -> datetime | None:
        """When a CA begins or ends to be valid."""
        found = (reading.authority for reading in self.readings.values() if reading.authority)
        return min((at for each in found for at in (each.begins, each.ends) if at > now), default=None)

    def problems(self, now: datetime) -> Iterator[Problem]:
        """What is wrong with them, backend by backend."""
        for name, reading in self.readings.items():
            dates = authority.date_problems(reading.authority, now) if reading.authority else ()
            for text in (*reading.problems, *dates):
                yield Problem(self.mesh.name, name, text)


def read(resource: Resource, secrets: Secrets) -> Backends:
    """The backends of a Mesh, as they are now."""
    said = mesh.mtls_of(resource.spec)
    listed = said.backends or ()
    enabled = next(
        (each for each in listed if said.enabled_backend and each.name == said.enabled_backend), None
    )
    if enabled is None:
        return Backends(resource)
    named, stamps = _places(resource.name, listed)
    found = {name: secrets(name) for name in named}
    data = {name: str(each.spec.get("data") or "") for name, each in found.items() if each is not None}
    return Backends(
        mesh=resource,
        enabled=enabled,
        readings={each.name or "": authority.read(resource.name, each, data.get) for each in listed},
        secrets=found,
        files=stamps,
    )


def _places(
    mesh_name: str, listed: tuple[MeshMtlsBackend, ...]
) -> tuple[list[str], dict[str, tuple[int, ...]]]:
    """The Secrets and the files that backends name; a file is looked at before it is read."""
    sources = [source for each in listed for source in authority.sources(mesh_name, each)]
    named = [source.secret for source in sources if source.secret]
    return named, {source.file: _stamp(source.file) for source in sources if source.file}


def _stamp(path: str) -> tuple[int, ...]:
    """What changes with a file; nothing where there is none."""
    try:
        seen = Path(path).stat()
    except (OSError, ValueError):
        return ()
    return seen.st_ino, seen.st_mtime_ns, seen.st_size
