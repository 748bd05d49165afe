"""Plays a script of a conversation between a proxy and a session, and says where they differ.

offer 1: cluster:a@1[endpoints:a] endpoints:a@1 !cluster:b   what it is to have; b could not be made
> cluster subscribe                                          what the proxy says
< cluster a@1 -x                                             all that it is told: a in version 1, no x
> cluster ack                                                or: ack old, nack <Envoy's words>
> endpoints subscribe a have a@1                             what it has from an earlier stream
wait 30                                                      seconds that pass
reconnect                                                    a new stream
= state synced                                               also: acked, next, has, rejected
"""

import re
from collections.abc import Iterator
from pathlib import Path

from koguma.envoy.snapshot import Failure, Snapshot, XdsResource, bundle
from koguma.xds.contract import Offer
from koguma.xds.protocol.delta import WILDCARD_TYPES, DeltaRequest, DeltaResponse
from koguma.xds.protocol.session import DeltaSession
from koguma.xds.sotw import SotwRequest, SotwResponse, SotwSession

DRAIN_SECONDS = 30.0
_PIECE = re.compile(r"(\w+):([^@\[\s]+)@([^@\[\s]+)(?:\[(.*)\])?")


def piece(text: str) -> XdsResource:
    """`type:name@version[type:name,...]` as a piece whose bytes say just that."""
    match = _PIECE.fullmatch(text)
    assert match, text
    type_, name, version, needs = match.groups()
    ids = [tuple(need.split(":", 1)) for need in (needs or "").split(",") if need]
    return XdsResource(type_, name, version, text.encode(), tuple((each[0], each[1]) for each in ids))


def snapshot(text: str) -> Snapshot:
    """Words as a snapshot; one that begins with `!` is a failure."""
    pieces = [piece(word) for word in text.split() if not word.startswith("!")]
    failed = [word[1:].split(":", 1) for word in text.split() if word.startswith("!")]
    return Snapshot((bundle(pieces, [Failure(type_, name, "broken") for type_, name in failed]),))


class DeltaPlayer:
    """A proxy that speaks the incremental form."""

    def __init__(self) -> None:
        self.session = DeltaSession(DRAIN_SECONDS)
        self.nonces: dict[str, str] = {}

    def say(self, type_: str, said: dict[str, list[str]], now: float) -> list[str]:
        answer, error = answered(said)
        request = DeltaRequest(
            type_,
            subscribe=tuple(said.get("subscribe", ())),
            unsubscribe=tuple(said.get("unsubscribe", ())),
            initial_versions=dict(each.split("@") for each in said.get("have", ())),
            nonce={"": "", "old": "0"}.get(answer, self.nonces.get(type_, "")),
            error=error,
        )
        return self.shown(self.session.receive(request, now))

    def offer(self, offer: Offer, now: float) -> list[str]:
        return self.shown(self.session.offer(offer, now))

    def tick(self, now: float) -> list[str]:
        return self.shown(self.session.tick(now))

    def shown(self, responses: list[DeltaResponse]) -> list[str]:
        for response in responses:
            self.nonces[response.type] = response.nonce
        return [shown(each.type, each.resources, each.removed) for each in responses]

    def expected(self, lines: list[str]) -> list[str]:
        return lines


class SotwPlayer:
    """A proxy that speaks the older form; what it is told is shown as the difference to what it has."""

    def __init__(self) -> None:
        self.session = SotwSession(DeltaSession(DRAIN_SECONDS))
        self.names: dict[str, set[str]] = {}
        self.newest: dict[str, SotwResponse] = {}
        self.answered: dict[str, str] = {}
        self.has: dict[str, dict[str, str]] = {}

    def say(self, type_: str, said: dict[str, list[str]], now: float) -> list[str]:
        names = self.names.setdefault(type_, set())
        names |= set(said.get("subscribe", ()))
        names -= set(said.get("unsubscribe", ()))
        answer, error = answered(said)
        if answer == "new":
            newest = self.newest[type_]
            self.answered[type_] = newest.nonce
            if not error:
                self.has[type_] = {each.name: each.version for each in newest.resources}
        nonce = "0" if answer == "old" else self.answered.get(type_, "")
        request = SotwRequest(type_, tuple(sorted(names)), nonce=nonce, error=error)
        return self.shown(self.session.receive(request, now))

    def offer(self, offer: Offer, now: float) -> list[str]:
        return self.shown(self.session.offer(offer, now))

    def tick(self, now: float) -> list[str]:
        return self.shown(self.session.tick(now))

    def shown(self, responses: list[SotwResponse]) -> list[str]:
        lines = []
        for response in responses:
            self.newest[response.type] = response
            pieces, removed = list(response.resources), set[str]()
            if response.type in WILDCARD_TYPES:
                has = self.has.get(response.type, {})
                pieces = [each for each in pieces if has.get(each.name) != each.version]
                removed = has.keys() - {each.name for each in response.resources}
            lines.append(shown(response.type, pieces, removed))
        return lines

    def expected(self, lines: list[str]) -> list[str]:
        """What is left of a line in this form, which cannot say that a name does not exist."""
        return [
            line if line.split()[1] in WILDCARD_TYPES else re.sub(r" -\S+", "", line)  # keep the rest
            for line in lines
        ]


Player = DeltaPlayer | SotwPlayer


def answered(said: dict[str, list[str]]) -> tuple[str, str]:
    """Whether the newest response is answered (`new`), an older one (`old`) or none, and Envoy's words."""
    if "nack" in said:
        return "new", " ".join(said["nack"])
    if "ack" in said:
        return "old" if said["ack"] == ["old"] else "new", ""
    return "", ""


def shown(type_: str, pieces, removed) -> str:
    words = [f"{each.name}@{each.version}" for each in sorted(pieces, key=lambda each: each.name)]
    return " ".join(["<", type_, *words, *(f"-{name}" for name in sorted(removed))])


def said(words: list[str]) -> dict[str, list[str]]:
    """`subscribe a b have a@1` by its verbs; whatever follows `nack` is Envoy's words."""
    found: dict[str, list[str]] = {}
    verb = ""
    for word in words:
        if verb != "nack" and word in ("subscribe", "unsubscribe", "have", "ack", "nack"):
            verb = word
            found[verb] = []
        else:
            found[verb].append(word)
    return found


def steps(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each deed with the lines that are expected after it."""
    deed, expected = "", list[str]()
    for line in (line.strip() for line in text.splitlines()):
        if not line or line.startswith("#"):
            continue
        if line.startswith("<"):
            expected.append(line)
            continue
        if deed:
            yield deed, expected
        deed, expected = line, []
    yield deed, expected


def play(script: Path, make: type[Player]) -> None:
    """Play a script to its end."""
    now, player = 0.0, make()
    for deed, expected in steps(script.read_text()):
        words = deed.split()
        told: list[str] = []
        match words[0]:
            case "offer" | "again":
                head, _, body = deed.partition(":")
                again = words[0] == "again"
                told = player.offer(Offer(int(head.split()[1]), snapshot(body), retry_rejected=again), now)
            case ">":
                told = player.say(words[1], said(words[2:]), now)
            case "wait":
                now += float(words[1])
                told = player.tick(now)
            case "reconnect":
                player = make()
            case "=":
                check(player, words[1], " ".join(words[2:]), deed)
            case _:
                raise AssertionError(f"no such deed: {deed}")
        wanted = player.expected(expected)
        assert told == wanted, f"after {deed!r} it is told {told}, not {wanted}"


def check(player: Player, what: str, expected: str, deed: str) -> None:
    """One line that begins with `=`."""
    status = player.session.status
    match what:
        case "state":
            found = status.state
        case "acked":
            found = str(status.acked)
        case "next":
            found = "never" if player.session.next_tick is None else f"{player.session.next_tick:g}"
        case "has":
            type_ = expected.partition(" ")[0]
            versions = status.acked_versions[type_]
            found = " ".join([type_, *(f"{n}@{v}" for n, v in sorted(versions.items()))])
        case "rejected":
            found = "; ".join(f"{each.type} {' '.join(each.names)}" for each in status.rejections)
        case _:
            raise AssertionError(f"no such question: {deed}")
    assert found == expected, f"{deed!r}, but it is {found!r}"
