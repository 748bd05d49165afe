"""Patch: what users change in a finished configuration, as the last step and on encoded pieces.

Whoever changes nothing pays nothing: only pieces that a change is about are read, changed and encoded again.
What comes out keeps Envoy's rules, as everything that is sent does. A change that would break them, or that
cannot be made, is left out of that piece and shown; the others act.

Pieces are changed apart from each other, so that each has to be done once, whatever happens to the rest.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from koguma.envoy.encode import Encoder, Unencodable
from koguma.envoy.patch_change import Change, Modification, Program, Reader
from koguma.envoy.patch_edits import Editor
from koguma.envoy.patch_messages import Messages, Unpatchable, unpatchable
from koguma.envoy.snapshot import TYPE_URLS, Failure, Id, Piece
from koguma.model.violation import Violation

ADDED: Final = "mesh-proxy-patch"  # the origin of what a modification adds, as in Kuma


class Outcome(msgspec.Struct, frozen=True):
    """What becomes of one piece: nothing where it is removed."""

    piece: Piece | None
    policies: tuple[str, ...] = ()  # that changed it, in order
    failures: tuple[Failure, ...] = ()


class Patcher:
    """Changes pieces with the messages of one Envoy."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._messages = Messages(encoder.schema)
        self._reader = Reader(encoder, self._messages)
        self._editor = Editor(self._messages)

    def program(self, modifications: Iterable[Modification]) -> Program:
        """Modifications, read."""
        return self._reader.program(modifications)

    def outcome(self, changes: Iterable[Change], piece: Piece, origin: str) -> Outcome:
        """What changes, in order, make of a piece."""
        found = [change for change in changes if change.concerns(piece.id, origin)]
        if not found:
            return Outcome(piece)
        try:
            return self._outcome(found, piece, check_each=False)
        except Unencodable:
            return self._outcome(found, piece, check_each=True)  # to find out which of them it is

    def _outcome(self, changes: Sequence[Change], piece: Piece, *, check_each: bool) -> Outcome:
        message = self._messages.parsed(TYPE_URLS[piece.type].rpartition("/")[2], piece.body)
        policies: dict[str, None] = {}
        failures: list[Failure] = []
        for change in changes:
            try:
                after = self._after(change, piece, message)
                if check_each and after is not None and after is not message:
                    self._encoded(piece, after)
            except (Unpatchable, Unencodable) as error:
                failures.append(change.failure(piece.id, _violations(error)))
                continue
            if after is not message:
                policies[change.policy] = None
                message = after
            if message is None:
                return Outcome(None, tuple(policies), tuple(failures))
        made = self._encoded(piece, message) if policies else piece
        return Outcome(made, tuple(policies), tuple(failures))

    def _after(self, change: Change, piece: Piece, message: Any) -> Any:
        """A message after a change: the same one where it is not meant, none where it is removed."""
        draft = type(message)()
        draft.CopyFrom(message)  # a change that fails half way has not happened
        if not self._editor.edited(change, piece.type, draft):
            return message
        if change.removes_piece:
            return None
        if draft.name != piece.name:
            raise unpatchable(f'must not change the name, which is "{piece.name}"; add another one instead')
        return draft

    def _encoded(self, piece: Piece, message: Any) -> Piece:
        made = self._encoder.piece(piece.type, piece.name, self._messages.plain(message), piece.needs)
        return piece if made.version == piece.version else made


def _violations(error: Unpatchable | Unencodable) -> Iterator[Violation]:
    if isinstance(error, Unpatchable):
        yield from error.violations
        return
    for each in error.violations:
        yield Violation("", f"Envoy would refuse the result: {each.field}: {each.message}", each.rule)


class Patched(msgspec.Struct, frozen=True):
    """What becomes of several pieces."""

    pieces: Mapping[Id, Piece]
    policies: Mapping[Id, tuple[str, ...]]  # of each that was changed, added or removed
    failures: tuple[Failure, ...] = ()


def over(
    program: Program,
    pieces: Mapping[Id, Piece],
    origin_of: Callable[[Id], str],
    outcome: Callable[[int, Piece, str], Outcome],
    *,
    is_home: bool = True,
) -> Patched:
    """What a program makes of several pieces.

    `outcome` gives what all changes but the first so many make of a piece. Of bundles that come together
    only one is the home of what is added; from the others it takes away what has the same name.
    """
    added = program.added
    results: dict[Id, Outcome] = {}
    for id_, piece in pieces.items():
        origin = origin_of(id_)
        if (number := added.get(id_)) is not None:
            results[id_] = Outcome(None, (program.changes[number - 1].policy,))
        elif any(change.concerns(id_, origin) for change in program.changes):
            results[id_] = outcome(0, piece, origin)
    if is_home:
        results |= {id_: _added(program, number, outcome) for id_, number in added.items()}
    failures = _together(failure for result in results.values() for failure in result.failures)
    return Patched(
        _with(pieces, results),
        {id_: result.policies for id_, result in results.items() if result.policies},
        (*(program.failures if is_home else ()), *failures),
    )


def _added(program: Program, number: int, outcome: Callable[[int, Piece, str], Outcome]) -> Outcome:
    """What becomes of a piece that a change adds, by that one and those after it."""
    change = program.changes[number - 1]
    assert change.added is not None, change
    result = outcome(number, change.added, ADDED)
    policies = tuple(dict.fromkeys((change.policy, *result.policies)))
    return msgspec.structs.replace(result, policies=policies)


def _with(pieces: Mapping[Id, Piece], results: Mapping[Id, Outcome]) -> Mapping[Id, Piece]:
    if not any(result.policies for result in results.values()):
        return pieces
    new = {id_: result.piece for id_, result in results.items()}
    return {id_: piece for id_, piece in {**pieces, **new}.items() if piece is not None}


def _together(failures: Iterable[Failure]) -> Iterator[Failure]:
    """Failures, where one that many pieces share is said once."""
    shared: dict[tuple[str, str], list[Failure]] = {}
    for each in failures:
        shared.setdefault((each.origin, each.text), []).append(each)
    for first, *more in shared.values():
        text = f"{first.text} (the same for {len(more)} more)" if more else first.text
        yield msgspec.structs.replace(first, text=text)
