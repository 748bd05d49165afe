"""Data sources: where certificates and keys come from, in the three spellings that Kuma has had.

DataSource is that of Mesh and MeshGateway. SecureDataSource is the newer one, with a `type`, of
MeshIdentity. MeshExternalService takes both, as TlsSource.
"""

from collections.abc import Collection, Iterator
from typing import Annotated, Final, Literal

from koguma.kinds import rules
from koguma.model.schema import SecretBase64, SecretText, Spec, doc
from koguma.model.violation import Violation, child

Source = Literal["Secret", "InsecureInline", "File", "EnvVar"]


class DataSource(Spec):
    """Bytes from exactly one of these places."""

    secret: Annotated[str | None, doc("Name of a Secret of the mesh.")] = None
    file: Annotated[str | None, doc("Path of a file on the control plane.")] = None
    inline: Annotated[SecretBase64 | None, doc("The bytes themselves, as base64.")] = None
    inline_string: Annotated[SecretText | None, doc("The text itself.")] = None


class SecretSource(Spec):
    """A Secret of the mesh."""

    kind: Annotated[Literal["Secret"], doc("Always Secret.")]
    name: Annotated[str, doc("Name of the Secret.")]


class InlineSource(Spec):
    """Text that stands in the object itself."""

    value: Annotated[SecretText, doc("The text.")]


class FileSource(Spec):
    """A file on the control plane."""

    path: Annotated[str, doc("Path of the file.")]


class EnvVarSource(Spec):
    """An environment variable of the control plane."""

    name: Annotated[str, doc("Name of the variable.")]


class SecureDataSource(Spec):
    """Text from the place that `type` names."""

    type: Annotated[Source, doc("Which of the places counts.")]
    secret_ref: Annotated[SecretSource | None, doc("With type Secret.")] = None
    insecure_inline: Annotated[InlineSource | None, doc("With type InsecureInline.")] = None
    file: Annotated[FileSource | None, doc("With type File.")] = None
    env_var: Annotated[EnvVarSource | None, doc("With type EnvVar.")] = None


class TlsSource(Spec):
    """A certificate or key: `secret`, `inline` or `inlineString`, or the newer form with `type`."""

    secret: Annotated[str | None, doc("Name of a Secret of the mesh.")] = None
    inline: Annotated[SecretBase64 | None, doc("The bytes themselves, as base64.")] = None
    inline_string: Annotated[SecretText | None, doc("The text itself.")] = None
    type: Annotated[Source | None, doc("Which of the places below counts, in the newer form.")] = None
    secret_ref: Annotated[SecretSource | None, doc("With type Secret.")] = None
    insecure_inline: Annotated[InlineSource | None, doc("With type InsecureInline.")] = None
    file: Annotated[FileSource | None, doc("With type File.")] = None
    env_var: Annotated[EnvVarSource | None, doc("With type EnvVar.")] = None


ANYWHERE: Final[tuple[Source, ...]] = ("EnvVar", "InsecureInline", "File", "Secret")


def named_sources(source: DataSource) -> tuple[str, ...]:
    """The fields of a data source that are set; exactly one is right."""
    sources = {
        "secret": source.secret,
        "file": source.file,
        "inline": source.inline,
        "inlineString": source.inline_string,
    }
    return tuple(name for name, value in sources.items() if value)


def violations(
    source: SecureDataSource | TlsSource, path: str, allowed: Collection[Source] = ANYWHERE
) -> Iterator[Violation]:
    """What is wrong with a source of the newer form."""
    if source.type not in allowed:
        yield Violation(child(path, "type"), f"{source.type} must be one of: {', '.join(allowed)}", "enum")
        return
    section, field, value = _chosen(source)
    at = child(path, section)
    if value is None:
        yield Violation(at, rules.DEFINED_MESSAGE, "required")
    elif not value:
        yield Violation(child(at, field), rules.DEFINED_MESSAGE, "required")


def _chosen(source: SecureDataSource | TlsSource) -> tuple[str, str, str | None]:
    """The section that counts, its field, and the field's value; None where the section is missing."""
    match source.type:
        case "Secret":
            return "secretRef", "name", None if source.secret_ref is None else source.secret_ref.name
        case "InsecureInline":
            inline = source.insecure_inline
            return "insecureInline", "value", None if inline is None else inline.value
        case "File":
            return "file", "path", None if source.file is None else source.file.path
        case _:
            return "envVar", "name", None if source.env_var is None else source.env_var.name
