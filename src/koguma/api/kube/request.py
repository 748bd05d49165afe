"""WriteRequest: one write of the Kubernetes form: who asks, for what, how it is to be done, and the body."""

from collections.abc import Sequence

import msgspec

from koguma.api.call import Call
from koguma.api.kube.bodies import RequestBody
from koguma.api.kube.options import WriteOptions
from koguma.api.kube.target import RequestTarget
from koguma.application import kube_admission
from koguma.core.admission import FieldValidation
from koguma.kube.registry import KubeEndpoint
from koguma.model.errors import BadRequest, Invalid, KogumaError
from koguma.model.schema import UNKNOWN
from koguma.model.violation import Violation, truncated_texts


class WriteRequest(msgspec.Struct, frozen=True):
    """A write. The target of one that creates gets its name once that is known."""

    call: Call
    target: RequestTarget
    options: WriteOptions
    given: RequestBody

    @property
    def endpoint(self) -> KubeEndpoint:
        """Where it is written."""
        return self.target.endpoint

    @property
    def verb(self) -> str:
        """What it does to an object that is there, in the words of access rules."""
        return "patch" if self.call.request.method == "PATCH" else "update"

    @property
    def is_strict(self) -> bool:
        """Whether fields that do not exist, or are given twice, are refused."""
        return self.options.validation is FieldValidation.STRICT

    def named(self, name: str) -> "WriteRequest":
        """The same, for an object of this name."""
        return msgspec.structs.replace(self, target=msgspec.structs.replace(self.target, name=name))

    def repeated(self) -> tuple[str, ...]:
        """What to tell of fields that are given twice; raises where they are refused."""
        if self.options.validation is FieldValidation.IGNORE:
            return ()
        found = [Violation(path, f'duplicate field "{path}"', "duplicate") for path in self.given.repeated]
        if found and self.is_strict:
            raise self._strict(found, truncated_texts(violation.message for violation in found))
        return truncated_texts(violation.message for violation in found)

    def refusal(self, error: Invalid) -> KogumaError:
        """The refusal of a document: one with fields that do not exist counts as one that cannot be read."""
        unknown = [violation for violation in error.violations if violation.rule == UNKNOWN]
        if not unknown or not self.is_strict:
            return error
        return self._strict(
            error.violations, [kube_admission.unknown_text(violation) for violation in unknown]
        )

    def _strict(self, violations: Sequence[Violation], texts: Sequence[str]) -> KogumaError:
        if self.call.request.method == "PATCH":
            return Invalid(violations)
        kind = self.endpoint.kind_name
        said = f'{kind} in version "{self.endpoint.version}" cannot be handled as a {kind}'
        return BadRequest(f"{said}: strict decoding error: {', '.join(texts)}", violations=violations)
