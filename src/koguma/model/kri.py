"""KRI, the Kuma Resource Identifier: one readable string for any resource, whatever its origin.

`kri_<short>_<mesh>_<zone>_<namespace>_<name>_<section>`; an absent part stays as an empty string,
also at the end. The founding document's rule for each part is enforced when one is built and when
one is parsed, so a Kri that exists is legal, and `parse(str(kri)) == kri`.

Envoy secrets keep their own older form, `<category>:<scope>:<identifier>` (SecretName).
"""

import re
from collections.abc import Container, Iterator
from typing import Self

import msgspec

from koguma.model.errors import BadRequest
from koguma.model.violation import Violation

PREFIX = "kri"
_PARTS = 7


class _Rule(msgspec.Struct, frozen=True):
    """What a part may look like, and the sentence that says so."""

    length_max: int
    pattern: re.Pattern[str]
    words: str


_ALNUM_ENDS = "starting and ending with a letter or digit"
_RULES = {
    "mesh": _Rule(
        63,
        re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?"),
        "at most 63 of a-z, 0-9 and '-', starting with a letter and ending with a letter or digit",
    ),
    "zone": _Rule(
        63,
        re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?"),
        "at most 63 of a-z, 0-9 and '-', starting with a letter and ending with a letter or digit",
    ),
    "namespace": _Rule(
        63,
        re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"),
        f"at most 63 of a-z, 0-9 and '-', {_ALNUM_ENDS}",
    ),
    "name": _Rule(
        253,
        re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?"),
        f"1 to 253 of a-z, 0-9, '-' and '.', {_ALNUM_ENDS}",
    ),
    "section": _Rule(
        63,
        re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"),
        f"at most 63 of a-z, 0-9 and '-', {_ALNUM_ENDS}",
    ),
}
_SHORT = re.compile(r"[a-zA-Z]+")


class InvalidKri(BadRequest):
    """Not a KRI, or not a legal one."""


class Kri(msgspec.Struct, frozen=True, order=True):
    """A legal identifier. `short` is the kind's short name; the other parts may be empty, not the name."""

    short: str
    mesh: str
    zone: str
    namespace: str
    name: str
    section: str = ""

    def __post_init__(self) -> None:
        violations = tuple(part_violations(self))
        if violations:
            text = "; ".join(f"{v.field} {v.message}" for v in violations)
            raise InvalidKri(f"illegal identifier: {text}", violations=violations)

    def __str__(self) -> str:
        return f"{PREFIX}_{self.short}_{self.mesh}_{self.zone}_{self.namespace}_{self.name}_{self.section}"

    def with_section(self, section: str) -> Self:
        """The same resource, one part of it: a port, a listener."""
        return msgspec.structs.replace(self, section=section)


def part_violations(kri: Kri) -> Iterator[Violation]:
    """What is wrong with the parts: each names the part, its value and the rule."""
    if not _SHORT.fullmatch(kri.short):
        yield Violation("type", f'"{kri.short}" must be letters only', "kri")
    for part, rule in _RULES.items():
        value = getattr(kri, part)
        if not value and part != "name":
            continue
        if len(value) > rule.length_max or not rule.pattern.fullmatch(value):
            yield Violation(part, f'"{value}" must be {rule.words}', "kri")


def parse(text: str, shorts: Container[str] | None = None) -> Kri:
    """The identifier that `text` writes; `shorts` are the known short names, where they are to be checked."""
    parts = text.split("_")
    if len(parts) < _PARTS:
        hint = f"{PREFIX}_<type>_<mesh>_<zone>_<namespace>_<name>_<section> has six underscores"
        raise InvalidKri(f'invalid identifier string: "{text}"', violations=[Violation("kri", hint, "parts")])
    if parts[0] != PREFIX:
        hint = f'"{parts[0]}" is an unknown format version; this control plane reads "{PREFIX}"'
        raise InvalidKri(
            f"identifier must start with '{PREFIX}': \"{text}\"",
            violations=[Violation("kri", hint, "version")],
        )
    if len(parts) > _PARTS:
        hint = f"{len(parts) - 1} underscores, six are needed; no part may contain one"
        raise InvalidKri(f'invalid identifier string: "{text}"', violations=[Violation("kri", hint, "parts")])
    if shorts is not None and parts[1] not in shorts:
        raise InvalidKri(
            f'unknown short name of resource type: "{parts[1]}"',
            violations=[Violation("type", f'"{parts[1]}" is no short name; see GET /_resources', "type")],
        )
    return Kri(*parts[1:])


def is_kri(text: str) -> bool:
    """Whether a name, such as an Envoy cluster's, is meant as a KRI."""
    return text.startswith(f"{PREFIX}_") and text.count("_") == _PARTS - 1


SECRET_CATEGORIES = ("mesh_ca", "identity_cert", "cert", "cert.rsa", "cert.ecdsa")
SECRET_SCOPES = ("secret", "file", "inline", "inlineString")
ALL_MESHES = "*"  # in place of a mesh's name, which it cannot be


class SecretName(msgspec.Struct, frozen=True, order=True):
    """The name of an Envoy secret: `<category>:<scope>:<identifier>`; the identifier may contain `:`."""

    category: str
    scope: str
    identifier: str

    def __post_init__(self) -> None:
        for part, value, legal in (
            ("category", self.category, SECRET_CATEGORIES),
            ("scope", self.scope, SECRET_SCOPES),
        ):
            if value not in legal:
                raise InvalidKri(f'secret name: {part} "{value}" is not one of {", ".join(legal)}')
        if not self.identifier:
            raise InvalidKri("secret name: the identifier must not be empty")

    def __str__(self) -> str:
        return f"{self.category}:{self.scope}:{self.identifier}"


def parse_secret_name(text: str) -> SecretName:
    """The secret name that `text` writes."""
    parts = text.split(":", 2)
    if len(parts) != 3:  # noqa: PLR2004 - category, scope, identifier
        raise InvalidKri(f'secret name: "{text}" is not <category>:<scope>:<identifier>')
    return SecretName(*parts)
