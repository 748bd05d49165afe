"""What no other policy can say: changes to the Envoy configuration itself, as the last step.

MeshProxyPatch acts on whole proxies, after all other policies. Each modification adds, removes or patches
one kind of thing: a cluster, a listener, a network filter, an HTTP filter, a virtual host. `value` is
Envoy's own configuration, as YAML text or as an object; it is merged into what is there. `jsonPatches`
change single fields. Names are those of the finished configuration, so a patch may stop fitting when they
change. Lists of several policies are put together.

A field, a value, a type or a pointer that Envoy's messages do not have is refused when the policy is written,
with its place and the nearest name. What depends on the configuration that is patched, such as a `replace` of
something that is not set, is told by `koguma get proxies` and `koguma check`; the other modifications act.

```yaml
type: MeshProxyPatch
name: buffer-less
mesh: default
spec:
  targetRef: {kind: Dataplane, labels: {app: backend}}
  default:
    appendModifications:
      - listener:
          operation: Patch
          match: {origin: inbound}
          jsonPatches:
            - {op: add, path: /perConnectionBufferLimitBytes, value: 32768}
      - httpFilter:
          operation: AddBefore
          match: {name: envoy.filters.http.router, origin: inbound}
          value: |
            name: envoy.filters.http.compressor
            typedConfig:
              '@type': type.googleapis.com/envoy.extensions.filters.http.compressor.v3.Compressor
              compressorLibrary:
                name: gzip
                typedConfig:
                  '@type': type.googleapis.com/envoy.extensions.compression.gzip.compressor.v3.Gzip
```
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal

import msgspec
import yaml

from koguma.model import columns, target_ref
from koguma.model.condition import Condition
from koguma.model.kind import POLICY, Kind, Policy, ValidationContext
from koguma.model.overlay import PolicyHooks
from koguma.model.phase import Phase
from koguma.model.schema import Json, Spec, doc, keyed_by
from koguma.model.target_ref import TargetRef
from koguma.model.violation import Violation, child, item
from koguma.policies.parts import fields, spelling


class JsonPatch(Spec):
    """One change of a field, as RFC 6902 has it."""

    op: Annotated[Literal["add", "remove", "replace", "move", "copy"], doc("What to do.")]
    path: Annotated[str, doc("The field, as a JSON pointer.")]
    value: Annotated[Json, doc("The new value, for add and replace.")] = None
    from_: Annotated[str | None, doc("Where the value is taken, for move and copy.")] = msgspec.field(
        name="from", default=None
    )


class PatchMatch(Spec):
    """Which things are meant; all that is set must hold."""

    origin: Annotated[
        str | None, doc("What made the thing: inbound, outbound, transparent, ingress, egress, gateway, ...")
    ] = None
    name: Annotated[str | None, doc("The thing's own name.")] = None


class ListenerMatch(PatchMatch):
    """Which listeners are meant."""

    tags: Annotated[Mapping[str, str] | None, doc("Tags in the listener's metadata.")] = None


class FilterMatch(PatchMatch):
    """Which filters are meant."""

    listener_name: Annotated[str | None, doc("The name of the filter's listener.")] = None
    listener_tags: Annotated[Mapping[str, str] | None, doc("Tags in that listener's metadata.")] = None


class VirtualHostMatch(PatchMatch):
    """Which virtual hosts are meant."""

    route_configuration_name: Annotated[str | None, doc("The name of its route configuration.")] = None


class PatchChange(Spec):
    """What every modification has."""

    value: Annotated[str | dict[str, Json] | None, doc("Envoy's configuration: YAML text, or an object.")] = (
        None
    )
    json_patches: Annotated[tuple[JsonPatch, ...] | None, doc("Changes of fields, for Patch only.")] = None


class ClusterChange(PatchChange, kw_only=True):
    """A change of clusters."""

    operation: Annotated[Literal["Add", "Remove", "Patch"], doc("What to do.")]
    match: Annotated[PatchMatch | None, doc("Which clusters; not for Add.")] = None


class ListenerChange(PatchChange, kw_only=True):
    """A change of listeners."""

    operation: Annotated[Literal["Add", "Remove", "Patch"], doc("What to do.")]
    match: Annotated[ListenerMatch | None, doc("Which listeners; not for Add.")] = None


class VirtualHostChange(PatchChange, kw_only=True):
    """A change of virtual hosts."""

    operation: Annotated[Literal["Add", "Remove", "Patch"], doc("What to do.")]
    match: Annotated[VirtualHostMatch | None, doc("Which virtual hosts; for Add, where.")] = None


class FilterChange(PatchChange, kw_only=True):
    """A change of network or HTTP filters."""

    operation: Annotated[
        Literal["AddFirst", "AddLast", "AddBefore", "AddAfter", "Remove", "Patch"], doc("What to do.")
    ]
    match: Annotated[FilterMatch | None, doc("Which filters; for Add..., where.")] = None


class Modification(Spec):
    """One change: exactly one of these."""

    cluster: Annotated[ClusterChange | None, doc("Clusters.")] = None
    listener: Annotated[ListenerChange | None, doc("Listeners.")] = None
    network_filter: Annotated[FilterChange | None, doc("Network filters.")] = None
    http_filter: Annotated[FilterChange | None, doc("HTTP filters.")] = None
    virtual_host: Annotated[VirtualHostChange | None, doc("Virtual hosts.")] = None


class PatchConf(Spec):
    """The changes."""

    append_modifications: Annotated[
        tuple[Modification, ...] | None, doc("The changes, one after the other.")
    ] = None


class MeshProxyPatchSpec(Spec):
    """Which proxies, and the changes of their configuration."""

    target_ref: Annotated[
        TargetRef | None, doc("The proxies that this acts on; all of the mesh by default.")
    ] = None
    default: Annotated[PatchConf, doc("The changes.")] = PatchConf()


class MeshProxyPatchStatus(Spec):
    """What became of the changes."""

    conditions: Annotated[
        tuple[Condition, ...] | None,
        doc("Accepted is False where proxies refuse what comes out."),
        keyed_by("type"),
    ] = None


AnyChange = ClusterChange | ListenerChange | VirtualHostChange | FilterChange


def validate(spec: MeshProxyPatchSpec, context: ValidationContext) -> Iterator[Violation]:
    """What Kuma refuses, with its messages, and what Envoy's messages do not have where they are at hand."""
    allowed = target_ref.PROXIES if context.is_system else target_ref.NAMESPACED_PROXIES
    top = spec.target_ref or target_ref.MESH
    yield from target_ref.violations(top, "spec.targetRef", allowed, sections=False, gateway_tags=False)
    path = "spec.default.appendModifications"
    if not spec.default.append_modifications:
        yield Violation(path, fields.MUST_NOT_BE_EMPTY, "required")
    for index, modification in enumerate(spec.default.append_modifications or ()):
        violations = list(_modification(modification, item(path, index)))
        yield from violations
        if not violations and context.patch_checks is not None:
            yield from context.patch_checks.violations(msgspec.to_builtins(modification), item(path, index))


def _modification(modification: Modification, path: str) -> Iterator[Violation]:
    changes: tuple[tuple[str, AnyChange | None], ...] = (
        ("cluster", modification.cluster),
        ("listener", modification.listener),
        ("networkFilter", modification.network_filter),
        ("httpFilter", modification.http_filter),
        ("virtualHost", modification.virtual_host),
    )
    present = [(name, change) for name, change in changes if change is not None]
    if len(present) != 1:
        message = (
            "exactly one modification can be defined at a time."
            f" Currently, {len(present)} modifications are defined"
        )
        yield Violation(path, message, "exclusive")
        return
    name, change = present[0]
    yield from _place(change, child(path, name))
    yield from _content(change, child(path, name), name)


_NO_PLACE: Final = f"{fields.MUST_NOT_BE_DEFINED}; leave it out with operation Add, or use operation Patch"
_PATCHES_ONLY: Final = f"{fields.MUST_NOT_BE_DEFINED}; jsonPatches go with operation Patch"
_NO_VALUE: Final = f"{fields.MUST_NOT_BE_DEFINED}; with operation Remove, match says what is removed"
_PICK: Final = "You need to pick a filter {} which this one will be added"
_NAME_MESSAGES: Final = {
    "AddBefore": f"{fields.MUST_BE_DEFINED}. {_PICK.format('before')}",
    "AddAfter": f"{fields.MUST_BE_DEFINED}. {_PICK.format('after')}",
    "Patch": fields.MUST_BE_DEFINED,
}


def _place(change: AnyChange, path: str) -> Iterator[Violation]:
    name = change.match.name if change.match is not None else None
    match change:
        case VirtualHostChange(operation="Add"):
            if name is not None:
                yield Violation(child(path, "match.name"), _NO_PLACE, "forbidden")
        case ClusterChange(operation="Add") | ListenerChange(operation="Add"):
            if change.match is not None:
                yield Violation(child(path, "match"), _NO_PLACE, "forbidden")
        case FilterChange(operation="AddBefore" | "AddAfter" | "Patch" as operation):
            if name is None:
                yield Violation(child(path, "match.name"), _NAME_MESSAGES[operation], "required")
        case _:
            return


def _content(change: AnyChange, path: str, name: str) -> Iterator[Violation]:
    if change.operation == "Patch":
        yield from _patch(change, path, name)
        return
    if change.json_patches:
        yield Violation(child(path, "jsonPatches"), _PATCHES_ONLY, "forbidden")
    at = child(path, "value")
    if change.operation == "Remove":
        if change.value is not None:
            yield Violation(at, _NO_VALUE, "forbidden")
    elif change.value is None:
        yield Violation(at, fields.MUST_BE_DEFINED, "required")
    else:
        yield from _value(change.value, at)


def _patch(change: PatchChange, path: str, name: str) -> Iterator[Violation]:
    if change.value is not None and change.json_patches:
        message = f"{name} must have only one type defined: value, jsonPatches"
        yield Violation(path, message, "exclusive")
    elif change.value is not None:
        yield from _value(change.value, child(path, "value"))
    elif not change.json_patches:
        message = f"{name} must have exactly one defined: value, jsonPatches"
        yield Violation(path, message, "required")
    for index, patch in enumerate(change.json_patches or ()):
        yield from _json_patch(patch, item(child(path, "jsonPatches"), index))


def _value(value: str | dict[str, Json], path: str) -> Iterator[Violation]:
    if isinstance(value, dict):
        return
    problem = _yaml_problem(value)
    if problem:
        yield Violation(path, f"native Envoy resource is not valid: {problem}", "yaml")


def _yaml_problem(text: str) -> str:
    """What keeps `text` from being a YAML object; empty where nothing does."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        return f"{line}{error.problem}"
    except yaml.YAMLError:  # a character that YAML does not allow
        return "it is not YAML"
    except RecursionError:
        return "it is nested too deeply"
    return "" if isinstance(node, yaml.MappingNode) else "it is not an object"


def _json_patch(patch: JsonPatch, path: str) -> Iterator[Violation]:
    yield from _only_for("from", patch.from_, patch.op, ("move", "copy"), path)
    yield from _only_for("value", patch.value, patch.op, ("add", "replace"), path)
    at = child(path, "path")
    if patch.path in ("", "/") and patch.op == "remove":
        yield Violation(at, "root path cannot be removed", "forbidden")
    for name, pointer in (("path", patch.path), ("from", patch.from_)):
        if pointer and not pointer.startswith("/"):
            yield Violation(child(path, name), "must be a JSON pointer, which begins with '/'", "pointer")


def _only_for(
    name: str, value: Json, operation: str, operations: tuple[str, str], path: str
) -> Iterator[Violation]:
    words = ", ".join(f'"{each}"' for each in operations)
    if operation in operations and value is None:
        message = f'"{name}" {fields.MUST_NOT_BE_EMPTY} when "op" is one of [{words}]'
        yield Violation(child(path, name), message, "required")
    if operation not in operations and value is not None:
        message = f'"{name}" is allowed only when "op" is one of [{words}]'
        yield Violation(child(path, name), message, "forbidden")


def warn(spec: MeshProxyPatchSpec, _context: ValidationContext) -> Iterator[str]:
    """Deprecations."""
    yield from target_ref.warnings(spec.target_ref)


KIND = Kind(
    name="MeshProxyPatch",
    plural="meshproxypatches",
    short="mpp",
    doc=__doc__,
    spec=MeshProxyPatchSpec,
    columns=columns.PATCH,
    status=MeshProxyPatchStatus,
    sync=POLICY,
    policy=Policy(phase=Phase.PATCHES, hooks=PolicyHooks(modifications="appendModifications")),
    clean=spelling.refs,
    validate=validate,
    warn=warn,
    display=("Mesh Proxy Patch", "Mesh Proxy Patches"),
    admin_written=True,
)
