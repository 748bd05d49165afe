"""Extension: what the plugin that a MeshExternalService names in `extension.type` says of one of its ports.

The plugin may be of another package, and raise or return anything. Whatever it does, it takes away this port
alone, and the problem names the plugin. What it raises is shown without its text where it was given Secrets,
since the text may repeat them.
"""

import traceback
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from koguma.core import world
from koguma.core.build import mesh_secret
from koguma.core.incremental import Db
from koguma.core.world import Port
from koguma.envoy import proto_json
from koguma.envoy.proto_json import Data
from koguma.model import schema, typed_parts
from koguma.model.destination import DestinationParts, DestinationPlugin, DestinationPort, SecretRef
from koguma.model.nearest import nearest
from koguma.model.redacted import Redacted
from koguma.model.resource import Key
from koguma.model.schema import UNKNOWN, Json
from koguma.model.violation import Violation, child, under

_SECRETS: Final[typed_parts.PartTypes] = frozenset({SecretRef})
# The last upstream filter, which sends the request. Envoy adds it only where there are no others.
CODEC: Final[Data] = proto_json.extension(
    "envoy.filters.http.upstream_codec", "envoy.extensions.filters.http.upstream_codec.v3.UpstreamCodec"
)


class BuiltExtension(msgspec.Struct, frozen=True):
    """What a plugin says of a port, or problems, and then nothing else; secrets by their name in Envoy."""

    cluster: Data = {}
    http_options: Data = {}
    secrets: Mapping[str, Data] = {}
    body_bytes_max: int = 0
    problems: tuple[str, ...] = ()


def plugin(db: Db, type_: str) -> DestinationPlugin | None:
    """The plugin of a type, if it is installed."""
    plugins = world.kind_of(db, "MeshExternalService").extensions
    return next((each for each in plugins if each.type == type_), None)


def not_installed(db: Db, type_: str) -> str:
    """What is said where no plugin of a type is installed."""
    known = [each.type for each in world.kind_of(db, "MeshExternalService").extensions]
    near = nearest(type_, known)
    hint = f'did you mean "{near}"?' if near else f"installed are: {', '.join(known) or 'none'}"
    return f'no plugin "{type_}" is installed beside the control plane; {hint}'


def of(db: Db, service: Key, written: Json, port: Port, name: str, path: str) -> BuiltExtension:
    """What the plugin says of a port; `written` is the section `extension`, and `path` where it stands."""
    type_ = written.get("type") or ""
    found = plugin(db, type_)
    if found is None:
        return _failed(f"{child(path, 'type')}: {not_installed(db, type_)}")
    if port.protocol not in found.protocols:
        return _failed(protocol_problem(found, port.protocol))
    config, at = written.get("config") or {}, child(path, "config")
    wrong = [each for each in schema.checker(found.config)(config, at) if each.rule != UNKNOWN]
    if wrong:  # stored under an earlier version of the plugin, or before it was installed
        return _failed(*_texts(wrong))
    names = _secret_names(found, config)
    missing = [
        f"{where}: {problem}"
        for where, secret in names.items()
        if (problem := mesh_secret.problem(db, service.mesh, service.zone, secret))
    ]
    if missing:
        return _failed(*(f"{at}.{each}" for each in missing))
    secrets = {
        secret: Redacted(mesh_secret.text(db, service.mesh, service.zone, secret) or "")
        for secret in names.values()
    }
    asked = DestinationPort(name, port.number, port.protocol, service.mesh, secrets)
    try:
        return _built(found, asked, config, at)
    except Exception as error:  # noqa: BLE001 - a plugin may raise anything
        return _failed(f"{at}: {_raised(found, error, tells=not secrets)}")


def protocol_problem(of: DestinationPlugin, protocol: str) -> str:
    """What is said where a port speaks a protocol that a plugin does not."""
    return f'a destination of type "{of.type}" takes {", ".join(of.protocols)}, not {protocol}'


def _failed(*problems: str) -> BuiltExtension:
    return BuiltExtension(problems=problems)


def _texts(violations: list[Violation] | tuple[Violation, ...]) -> Iterator[str]:
    return (f"{each.field}: {each.message}" for each in violations)


def _secret_names(of: DestinationPlugin, config: Json) -> dict[str, str]:
    """The names of Secrets in a configuration, by path."""
    refs = typed_parts.parts_of(of.config, config, _SECRETS)
    return {child(ref.path, "secret"): ref.value["secret"] for ref in refs}


def _built(of: DestinationPlugin, port: DestinationPort, config: Json, at: str) -> BuiltExtension:
    read = schema.read(of.config, config)
    violations = tuple(of.validate(read))  # it may have been stored before the plugin was installed
    if violations:
        return _failed(*_texts(tuple(under(at, violations))))
    parts = of.build(read, port)
    if not isinstance(parts, DestinationParts):
        raise TypeError(f"its build returned {type(parts).__name__} and no DestinationParts")
    if parts.problems:
        return _failed(*_texts(tuple(under(at, parts.problems))))
    # The type of a part is only a hint to whoever writes a plugin, so each is read here.
    parts = msgspec.convert(msgspec.to_builtins(parts), DestinationParts)
    options = dict(parts.http_options)
    if parts.http_filters:
        options["http_filters"] = [*parts.http_filters, CODEC]
    secrets = {
        port.secret_name(key): {**data, "name": port.secret_name(key)}
        for key, data in sorted(parts.secrets.items())
    }
    cluster = {**parts.cluster, "name": port.name}
    return BuiltExtension(cluster, options, secrets, parts.body_bytes_max)


def _raised(of: DestinationPlugin, error: Exception, *, tells: bool) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
    what = f"{type(error).__name__}: {error}"[:500] if tells else f"{type(error).__name__} at {where}"
    makers = f"; tell the makers of {of.origin}" if of.origin else ""
    return f'the plugin of type "{of.type}" cannot build it: {what}{makers}'
