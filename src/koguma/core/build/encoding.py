"""Encoding: plain data becomes an xDS resource, or a failure that names the object it is for.

The encoder is an input, since its schema comes out of the Envoy that will read what we send.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache

from koguma.core import world
from koguma.core.incremental import Db, question
from koguma.core.inputs import Input
from koguma.envoy.encode import Encoder, Unencodable
from koguma.envoy.snapshot import Bundle, Failure, Id, XdsResource, bundle
from koguma.model import derived
from koguma.model.resource import Key
from koguma.model.schema import Json

ENCODER: Input[str, Encoder] = Input("encoder")


@question
def encoder(db: Db) -> Encoder:
    """The encoder for the Envoy that will read what we send."""
    loaded = ENCODER.get(db, "envoy")
    if loaded is None:
        raise LookupError("no Envoy schema is loaded")
    return loaded


def encoded(
    db: Db, type_: str, name: str, data: Json, needs: Iterable[Id] = (), origin: str = ""
) -> XdsResource | Failure:
    """The resource, or why there is none. Equal data is encoded once, and is one value for all proxies."""
    return _or_failure(encoder(db).shared, type_, name, data, needs, origin)


def own(
    db: Db, type_: str, name: str, data: Json, needs: Iterable[Id] = (), origin: str = ""
) -> XdsResource | Failure:
    """The same for a resource that no other proxy has."""
    return _or_failure(encoder(db).resource, type_, name, data, needs, origin)


def _or_failure(
    make: Callable[[str, str, Json, Iterable[Id]], XdsResource],
    type_: str,
    name: str,
    data: Json,
    needs: Iterable[Id],
    origin: str,
) -> XdsResource | Failure:
    try:
        return make(type_, name, data, needs)
    except Unencodable as error:
        text = "; ".join(f"{each.field}: {each.message}" for each in error.violations)
        return Failure(type_, name, text, origin or name)


def nameless(type_: str, key: Key) -> Failure:
    """Why there is no resource for an object whose stored names make no identifier."""
    text = "its name or a port's name cannot be part of an identifier; rename it"
    return Failure(type_, str(key), text, str(key))


def bundled(built: Iterable[XdsResource | Failure]) -> Bundle:
    """Resources and failures as one bundle, each failure once."""
    everything = tuple(built)
    return bundle(
        (each for each in everything if isinstance(each, XdsResource)),
        dict.fromkeys(each for each in everything if isinstance(each, Failure)),
    )


def kri(db: Db, key: Key, section: str) -> str:
    """The identifier by which Envoy knows a resource; empty where the stored names cannot make one."""
    return _kri(world.kind_of(db, key.kind).short, key, section)


@lru_cache(maxsize=16384)  # a class names all that it calls
def _kri(short: str, key: Key, section: str) -> str:
    identifier = derived.identifier(key, short, section)
    return str(identifier) if identifier else ""
