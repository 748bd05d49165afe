"""Kind record: what all kinds of the Gateway API have in common."""

from collections.abc import Callable, Iterator
from typing import Any

from koguma.kube.kinds.gateway_api import defaults, list_rules
from koguma.model.gateway_api.references import GROUP
from koguma.model.kind import Column, Kind, Scope, ValidationContext
from koguma.model.schema import Json, Spec
from koguma.model.violation import Violation

_Rule = Callable[[Any, ValidationContext], Iterator[Violation]]


def _no_rule(_spec: Any, _context: ValidationContext) -> Iterator[Violation]:
    return iter(())


def kind_of(  # noqa: PLR0913 - a record
    name: str,
    plural: str,
    doc: str,
    spec: type[Spec],
    status: type[Spec] | None = None,
    rule: _Rule = _no_rule,
    columns: tuple[Column, ...] = (),
    *,
    namespaced: bool = True,
) -> Kind:
    """A kind of the group; what is stored has its defaults filled in, as Kubernetes does it."""

    def validate(written: Any, context: ValidationContext) -> Iterator[Violation]:
        yield from list_rules.violations(written)
        yield from rule(written, context)

    return Kind(
        name=name,
        plural=plural,
        set_name=f"{name}.{GROUP}",
        group=GROUP,
        doc=doc,
        spec=spec,
        status=status,
        scope=Scope.GLOBAL,
        namespaced=namespaced,
        clean=defaults.cleaned(spec),
        validate=validate,
        columns=columns,
    )


def condition_column(type_: str, doc: str) -> Column:
    """A column that shows whether a condition holds."""

    def value(_spec: Json, status: Json) -> str | None:
        found = [each["status"] for each in status.get("conditions") or () if each.get("type") == type_]
        return found[0] if found else None

    return Column(type_, value, doc)
