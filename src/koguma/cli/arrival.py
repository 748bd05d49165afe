"""Arrival: waits until a revision has reached every proxy that it touches, and says who lacks it and why."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import click

from koguma.cli import terminal
from koguma.cli.client import ApiClient, Json
from koguma.cli.failures import ApiError, CommandFailure, ServerUnreachable

NOT_ARRIVED: Final = 2  # the exit code
_LOOK_SECONDS: Final = 1.0  # how long the server waits with each answer
_RETRY_SECONDS: Final = 0.5
_PATIENCE_SECONDS: Final = 5.0  # with an answer, where less time is left: a busy server is late, too
_UNAVAILABLE: Final = 503
_LINE_START: Final = "\r\x1b[K"
_SHOWN_MAX: Final = 20
_ASKED_MAX: Final = 50  # revisions, and objects, that the server takes at once
_TEXTLESS: Final = ("offline", "not-received")  # reasons of zones that are said in full

Function = Callable[..., Any]


class Seconds(click.ParamType[float]):
    """A duration such as 30s, as seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds of a text."""
        from koguma.model import duration  # noqa: PLC0415 - only where it is used

        if isinstance(value, float):
            return value
        try:
            seconds = duration.seconds(value)
        except ValueError as error:
            self.fail(f'"{value}" {error}', param, ctx)
        if seconds < 0:
            self.fail(f'"{value}" must not be negative', param, ctx)
        return seconds


def options(function: Function) -> Function:
    """The options that say for how long, and for whom, to wait."""
    connected = click.option(
        "--connected", is_flag=True, help="Do not wait for proxies, nor for zones, that are not connected."
    )
    timeout = click.option(
        "--timeout", type=Seconds(), default="30s", show_default=True, help="How long to wait at the most."
    )
    return timeout(connected(function))


class Awaited(NamedTuple):
    """What is to arrive: revisions, none for the newest one, and objects, of which refusals count, too."""

    revisions: Sequence[int]
    objects: Sequence[str] = ()  # KRIs; their revisions may be those of a status

    @classmethod
    def of(cls, revisions: Iterable[int], objects: Sequence[str] = ()) -> "Awaited":
        """Each revision once, the newest first."""
        return cls(sorted(set(revisions), reverse=True), objects)

    def parts(self) -> "Iterator[Awaited]":
        """As much as the server takes at once."""
        for at in range(0, max(len(self.revisions), len(self.objects)), _ASKED_MAX):
            end = at + _ASKED_MAX
            yield Awaited(self.revisions[at:end] or self.revisions[:1], self.objects[at:end])


class ArrivalWait:
    """Waits for what is awaited, and then for what was `unchanged` by the same command and may be lacking."""

    def __init__(
        self,
        client: ApiClient,
        awaited: Awaited,
        seconds: float,
        *,
        unchanged: Awaited = Awaited(()),  # noqa: B008 - immutable
        connected: bool,
        is_written: bool,
    ) -> None:
        self._client = client
        self._awaited = awaited
        self._unchanged = unchanged
        self._revision = max(awaited.revisions, default=0)
        self._seconds = seconds
        self._connected = connected
        self._is_written = is_written  # by this very command
        self._shows_line = sys.stderr.isatty()

    def answer(self) -> Json:
        """The last answer of the server: it has arrived, or time is up, or what lacks it will not pass."""
        began_at = time.monotonic()
        ends_at = began_at + self._seconds
        answer: Json = None
        try:
            # One after the other: a refusal counts for the revisions that it is about, and for no other.
            for part in self._awaited.parts() if self._revision else (self._awaited,):
                answer = self._last_answer(part, ends_at, is_first=answer is None)
                if not answer["arrived"]:
                    break
            # These only have to be there: whom they touched says nothing about the change.
            for part in self._unchanged.parts() if answer["arrived"] else ():
                found = self._last_answer(part, ends_at, is_first=False)
                if not found["arrived"]:
                    answer = found
                    break
        except KeyboardInterrupt:
            self._draw("")
            terminal.print_stderr(self._interrupted())
            raise
        self._draw("")
        return {**answer, "revision": self._revision}

    def _last_answer(self, part: Awaited, ends_at: float, *, is_first: bool) -> Json:
        answer: Json = None
        while answer is None or not _is_over(answer, ends_at):
            answer = self._asked(part, ends_at, is_first=is_first and answer is None) or answer
            if answer is not None:
                self._revision = self._revision or answer["revision"]
                self._draw(summary(answer))
        return answer

    def _asked(self, part: Awaited, ends_at: float, *, is_first: bool) -> Json | None:
        left = max(ends_at - time.monotonic(), 0.0)
        query = [("seconds", f"{min(left, _LOOK_SECONDS):.3f}")]
        revisions = part.revisions or ([self._revision] if self._revision else [])
        query += [("revision", str(each)) for each in revisions]
        query += [("object", kri) for kri in part.objects]
        if self._connected:
            query.append(("connected", "true"))
        self._client.be_patient(max(left, _PATIENCE_SECONDS))
        try:
            return self._client.get("/_arrival", query).object
        except (ServerUnreachable, ApiError) as lost:
            is_transient = not isinstance(lost, ApiError) or lost.status == _UNAVAILABLE
            left = ends_at - time.monotonic()
            if not is_transient or left <= 0 or (is_first and not self._is_written):
                raise self._about(lost) from None
            self._draw(f"{lost.message}; asking again")
            time.sleep(min(_RETRY_SECONDS, left))
            return None

    def _about(self, lost: CommandFailure) -> CommandFailure:
        """The same failure; where this command has written something, that this stays is part of it."""
        if not self._is_written:
            return lost
        message = f"it is written (revision {self._revision}); whether it has arrived cannot be said"
        return CommandFailure(f"{message}: {lost.message}", lost.lines, lost.code)

    def _interrupted(self) -> str:
        if not self._revision:
            return "interrupted"
        stays = "what was written stays; " if self._is_written else ""
        return f"interrupted: {stays}`koguma wait {self._revision}` waits again"

    def _draw(self, line: str) -> None:
        """Draw a line over the one before, on a terminal; one that wraps could not be drawn over."""
        if self._shows_line:
            sys.stderr.write(_LINE_START + terminal.printable(line)[: terminal.error_columns() - 1])
            sys.stderr.flush()


def wait(waiting: ArrivalWait) -> int:
    """Wait, and print how it ended; the exit code."""
    began_at = time.monotonic()
    answer = waiting.answer()
    took = time.monotonic() - began_at
    if answer["arrived"]:
        print(f"{summary(answer)} ({took:.1f}s)")
        return 0
    terminal.print_stderr(
        f"{terminal.paint('not arrived:', 'red', error=True)} {summary(answer)} ({took:.1f}s)"
    )
    for line in reasons(answer):
        terminal.print_stderr(terminal.printable(line))
    return NOT_ARRIVED


def _is_over(answer: Json, ends_at: float) -> bool:
    """Whether there is nothing more to wait for."""
    if answer["arrived"] or time.monotonic() >= ends_at:
        return True
    is_everybody = len(answer["lacking"]) == answer["proxies"]["lacking"]
    lacks = [*answer["lacking"], *_zones(answer)]
    is_lasting = is_everybody and bool(lacks) and all(lack["isLasting"] for lack in lacks)
    return is_lasting and not answer["controlPlanes"] and not answer.get("warning")


def summary(answer: Json) -> str:
    """How far a revision is, in one line: how many of how many, and the slowest."""
    revision, proxies = answer["revision"], answer["proxies"]
    n_affected, n_lacking, n_total = proxies["affected"], proxies["lacking"], proxies["total"]
    scope = " that you may list" if answer["isPartial"] else ""
    if not n_total and _zones(answer):
        line = f"revision {revision} has not reached every zone"
    elif not n_total:
        line = f"revision {revision}: there are no proxies{scope}"
    elif not n_affected:
        line = f"revision {revision} changes nothing for the {_counted(n_total)}{scope}"
    else:
        others = f", {n_total - n_affected} not affected" if n_total > n_affected else ""
        have = n_affected - n_lacking
        verb = "has" if have == 1 else "have"
        line = f"revision {revision}: {have} of {_counted(n_affected)}{scope} {verb} it{others}"
    if answer["lacking"]:
        first = answer["lacking"][0]
        line += f"; {shown(first)} {_words(first)}"
    elif _zones(answer):
        line += f"; {_zone_words(_zones(answer)[0])}"
    elif answer["controlPlanes"]:
        line += f"; control plane {answer['controlPlanes'][0]} has not read it yet"
    return line


def reasons(answer: Json) -> Iterator[str]:
    """Who lacks a revision, and why."""
    for lack in answer["lacking"][:_SHOWN_MAX]:
        by = f" (by {', '.join(lack['objects'])})" if lack["objects"] else ""
        yield f"  {shown(lack)} {_words(lack)}{by}: {lack['text']}"
    for lack in _zones(answer)[:_SHOWN_MAX]:
        text = f": {lack['text']}" if lack["reason"] not in _TEXTLESS else ""
        yield f"  {_zone_words(lack)}{text}"
    if len(_zones(answer)) > _SHOWN_MAX:
        yield f"  and {len(_zones(answer)) - _SHOWN_MAX} more; `koguma get zones` shows all"
    n_more = answer["proxies"]["lacking"] - len(answer["lacking"][:_SHOWN_MAX])
    if n_more > 0:
        yield f"  and {n_more} more; `koguma get proxies` shows all that are connected"
    for instance in answer["controlPlanes"]:
        yield f"  control plane {instance} has not read it yet; `koguma check` says more"
    if answer.get("warning"):
        yield f"  {answer['warning']}"


def shown(lack: Json) -> str:
    """A proxy by its name, with the mesh where it is not the default one, and on Global with its zone."""
    places = [f"mesh {lack['mesh']}"] if lack["mesh"] not in ("", "default") else []
    places += [f"zone {lack['zone']}"] if lack.get("zone") else []
    name = lack["name"] if lack["mesh"] else f"{lack['kind'].lower()} {lack['name']}"
    return f"{name} ({', '.join(places)})" if places else name


def _zones(answer: Json) -> list[Json]:
    """Of Global's answer: why it has not arrived in a zone, whatever the proxies there have."""
    zones: list[Json] = answer.get("zones", [])
    return zones


def _zone_words(lack: Json) -> str:
    since = f" since {lack['since']}" if lack["since"] else ""
    zone = f"zone {lack['name']}"
    match lack["reason"]:
        case "offline":
            return f"{zone} is offline{since}"
        case "not-received":
            return f"{zone} has not received it{since}"
        case "elsewhere":
            return f"{zone} is connected elsewhere"
        case "refused":
            return f"{zone} has refused {', '.join(lack['objects']) or 'a part of it'}"
        case "kept":
            return f"{zone} does not follow Global"
        case "too-old":
            return f"{zone} cannot answer"
    return f"{zone} does not answer"


def _words(lack: Json) -> str:
    since = f" since {lack['since']}" if lack["since"] else ""
    match lack["reason"]:
        case "refused":
            return f"has refused a part of it{since}"
        case "unbuildable":
            return "cannot get it: a part cannot be built"
        case "control-plane-gone":
            return f"has lost its control plane{since}"
        case "not-connected":
            return f"is not connected{since}"
        case "behind":
            return f"is behind{since}"
    return "waits for its control plane"


def _counted(number: int) -> str:
    return "1 proxy" if number == 1 else f"{number} proxies"
