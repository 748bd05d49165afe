"""Write request of the Kubernetes form: the call, its target, its options and its body."""

from collections.abc import Sequence

import msgspec

from koguma.api.call import Call
from koguma.api.kube.bodies import RequestBody
from koguma.api.kube.options import WriteOptions
from koguma.api.kube.target import RequestTarget
from koguma.application import admission_review
from koguma.application.admission_review import AdmissionRequest
from koguma.core.admission import FieldValidation
from koguma.kube.registry import KubeEndpoint
from koguma.model.errors import BadRequest, Invalid, KogumaError
from koguma.model.resource import Resource
from koguma.model.violation import Violation, truncated_texts


class WriteRequest(msgspec.Struct, frozen=True):
    """One write. The target of a create gets its name once that is generated or read."""

    call: Call
    target: RequestTarget
    options: WriteOptions
    body: RequestBody

    @property
    def endpoint(self) -> KubeEndpoint:
        """The endpoint that is written through."""
        return self.target.endpoint

    @property
    def verb(self) -> str:
        """The verb for an existing object, as access rules have it."""
        return "patch" if self.call.request.method == "PATCH" else "update"

    @property
    def is_strict(self) -> bool:
        """Whether unknown and duplicate fields are refused."""
        return self.options.validation is FieldValidation.STRICT

    def named(self, name: str) -> "WriteRequest":
        """The same, for an object of this name."""
        return msgspec.structs.replace(self, target=msgspec.structs.replace(self.target, name=name))

    def admission(self, before: Resource | None) -> AdmissionRequest:
        """The write as webhooks are asked about it."""
        manager, target = self.options.manager, self.target
        return AdmissionRequest(
            admission_review.UPDATE if before is not None else admission_review.CREATE,
            target.endpoint,
            target.where,
            target.name,
            self.call.user,
            before,
            target.subresource,
            self.options.is_dry,
            {"fieldManager": manager, "fieldValidation": self.options.validation.value},
        )

    def duplicate_field_warnings(self) -> tuple[str, ...]:
        """Warnings about duplicate fields, of which the last one counts."""
        if self.options.validation is FieldValidation.IGNORE:
            return ()
        return truncated_texts(violation.message for violation in self.body.duplicates)

    def check_decoded(self) -> None:
        """Raise where validation is strict and the body has duplicate fields."""
        if self.is_strict and self.body.duplicates:
            raise self._strict(self.body.duplicates, ())

    def unknown_field_warnings(self, unknown: Sequence[Violation]) -> tuple[str, ...]:
        """Warnings about fields that do not exist and are not stored; raises where they are refused."""
        if not unknown or self.options.validation is FieldValidation.IGNORE:
            return ()
        texts = truncated_texts(unknown_text(violation) for violation in unknown)
        if self.is_strict:
            raise self._strict((*self.body.duplicates, *unknown), texts)
        return texts

    def _strict(self, violations: Sequence[Violation], unknown: Sequence[str]) -> KogumaError:
        """All duplicate and unknown fields at once, as Kubernetes lists them."""
        if self.call.request.method == "PATCH":
            return Invalid(violations)
        texts = (*_duplicate_texts(self.body.duplicates), *truncated_texts(unknown))
        kind = self.endpoint.kind_name
        message = f'{kind} in version "{self.endpoint.version}" cannot be handled as a {kind}'
        return BadRequest(f"{message}: strict decoding error: {', '.join(texts)}", violations=violations)


def unknown_text(violation: Violation) -> str:
    """The warning for an unknown field, in Kubernetes' words, with a "did you mean" hint."""
    _, mark, meant = violation.message.partition("; did you mean ")
    return f'unknown field "{violation.field}"{mark}{meant}'


def _duplicate_texts(duplicates: Sequence[Violation]) -> tuple[str, ...]:
    """Duplicate fields of JSON one by one; those of YAML, which have no path, as one error of its parser."""
    texts = truncated_texts(violation.message for violation in duplicates)
    if not duplicates or duplicates[0].field:
        return texts
    return ("\n  ".join(("yaml: unmarshal errors:", *texts)),)
