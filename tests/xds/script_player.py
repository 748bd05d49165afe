"""Plays a script of an xDS stream against a session, and fails where the responses differ.

offer 1: cluster:a@1[endpoints:a] endpoints:a@1 !cluster:b   a new offer; cluster b could not be built
retry 2: ...                                                 an offer that also retries rejected versions
> cluster subscribe                                          a request of the proxy
< cluster a@1 -x                                             the expected responses: a in version 1, x removed
> cluster ack                                                or: ack old, nack <Envoy's error message>
> endpoints subscribe a have a@1                             with initial_resource_versions
wait 30                                                      seconds that pass
reconnect                                                    a new stream
= state synced                                               also: acked, next, has, rejected
"""

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from koguma.envoy.snapshot import Failure, Snapshot, XdsResource, bundle
from koguma.xds.contract import Offer
from koguma.xds.protocol.delta import WILDCARD_TYPES, DeltaRequest, DeltaResponse
from koguma.xds.protocol.session import DeltaSession
from koguma.xds.sotw import SotwRequest, SotwResponse, SotwSession

DRAIN_SECONDS = 30.0
_RESOURCE = re.compile(r"(\w+):([^@\[\s]+)@([^@\[\s]+)(?:\[(.*)\])?")
_VERBS = ("subscribe", "unsubscribe", "have", "ack", "nack")


def resource(text: str) -> XdsResource:
    """`type:name@version[type:name,...]` as a resource whose bytes are this text."""
    match = _RESOURCE.fullmatch(text)
    assert match, text
    type_, name, version, needs = match.groups()
    ids = [need.split(":", 1) for need in (needs or "").split(",") if need]
    return XdsResource(type_, name, version, text.encode(), tuple((id_[0], id_[1]) for id_ in ids))


def snapshot(text: str) -> Snapshot:
    """Resources as a snapshot; one with `!` before it is a failure."""
    resources = [resource(word) for word in text.split() if not word.startswith("!")]
    failed = [word[1:].split(":", 1) for word in text.split() if word.startswith("!")]
    return Snapshot((bundle(resources, [Failure(type_, name, "broken") for type_, name in failed]),))


class DeltaPlayer:
    """A proxy that speaks delta xDS."""

    def __init__(self) -> None:
        self.session = DeltaSession(DRAIN_SECONDS)
        self.nonces: dict[str, str] = {}

    def request(self, type_: str, arguments: dict[str, list[str]], now: float) -> list[str]:
        answers, error = answer(arguments)
        request = DeltaRequest(
            type_,
            subscribe=tuple(arguments.get("subscribe", ())),
            unsubscribe=tuple(arguments.get("unsubscribe", ())),
            initial_versions=dict(version.split("@") for version in arguments.get("have", ())),
            nonce={"": "", "old": "0"}.get(answers, self.nonces.get(type_, "")),
            error=error,
        )
        return self.printed(self.session.receive(request, now))

    def offer(self, offer: Offer, now: float) -> list[str]:
        return self.printed(self.session.offer(offer, now))

    def tick(self, now: float) -> list[str]:
        return self.printed(self.session.tick(now))

    def printed(self, responses: list[DeltaResponse]) -> list[str]:
        for response in responses:
            self.nonces[response.type] = response.nonce
        return [printed(response.type, response.resources, response.removed) for response in responses]

    def expected(self, lines: list[str]) -> list[str]:
        return lines


class SotwPlayer:
    """A proxy that speaks the state-of-the-world variant; responses are printed as a difference."""

    def __init__(self) -> None:
        self.session = SotwSession(DeltaSession(DRAIN_SECONDS))
        self.names: dict[str, set[str]] = {}
        self.newest: dict[str, SotwResponse] = {}
        self.answered: dict[str, str] = {}
        self.held: dict[str, dict[str, str]] = {}

    def request(self, type_: str, arguments: dict[str, list[str]], now: float) -> list[str]:
        names = self.names.setdefault(type_, set())
        names |= set(arguments.get("subscribe", ()))
        names -= set(arguments.get("unsubscribe", ()))
        answers, error = answer(arguments)
        if answers == "new":
            newest = self.newest[type_]
            self.answered[type_] = newest.nonce
            if not error:
                self.held[type_] = {sent.name: sent.version for sent in newest.resources}
        nonce = "0" if answers == "old" else self.answered.get(type_, "")
        request = SotwRequest(type_, tuple(sorted(names)), nonce=nonce, error=error)
        return self.printed(self.session.receive(request, now))

    def offer(self, offer: Offer, now: float) -> list[str]:
        return self.printed(self.session.offer(offer, now))

    def tick(self, now: float) -> list[str]:
        return self.printed(self.session.tick(now))

    def printed(self, responses: list[SotwResponse]) -> list[str]:
        lines = []
        for response in responses:
            self.newest[response.type] = response
            resources, removed = list(response.resources), set[str]()
            if response.type in WILDCARD_TYPES:
                held = self.held.get(response.type, {})
                resources = [sent for sent in resources if held.get(sent.name) != sent.version]
                removed = held.keys() - {sent.name for sent in response.resources}
            lines.append(printed(response.type, resources, removed))
        return lines

    def expected(self, lines: list[str]) -> list[str]:
        """The lines without removals that this variant cannot express: of types that are not listed whole."""
        return [line if line.split()[1] in WILDCARD_TYPES else re.sub(r" -\S+", "", line) for line in lines]


Player = DeltaPlayer | SotwPlayer


def answer(arguments: dict[str, list[str]]) -> tuple[str, str]:
    """Whether the newest response is answered (`new`), an older one (`old`) or none, and the error."""
    if "nack" in arguments:
        return "new", " ".join(arguments["nack"])
    if "ack" in arguments:
        return "old" if arguments["ack"] == ["old"] else "new", ""
    return "", ""


def printed(type_: str, resources: Iterable[XdsResource], removed: Collection[str]) -> str:
    sent = [f"{each.name}@{each.version}" for each in sorted(resources, key=lambda each: each.name)]
    return " ".join(["<", type_, *sent, *(f"-{name}" for name in sorted(removed))])


def arguments_of(words: list[str]) -> dict[str, list[str]]:
    """`subscribe a b have a@1` by its verbs; everything after `nack` is the error message."""
    arguments: dict[str, list[str]] = {}
    verb = ""
    for word in words:
        if verb != "nack" and word in _VERBS:
            verb = word
            arguments[verb] = []
        else:
            arguments[verb].append(word)
    return arguments


def steps(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each command with the responses that are expected after it."""
    command, expected = "", list[str]()
    for line in (line.strip() for line in text.splitlines()):
        if not line or line.startswith("#"):
            continue
        if line.startswith("<"):
            expected.append(line)
            continue
        if command:
            yield command, expected
        command, expected = line, []
    yield command, expected


def play(script: Path, make: type[Player]) -> None:
    """Play a script to its end."""
    now, player = 0.0, make()
    for command, expected in steps(script.read_text()):
        words = command.split()
        responses: list[str] = []
        match words[0]:
            case "offer" | "retry":
                head, _, body = command.partition(":")
                retries = words[0] == "retry"
                offer = Offer(int(head.split()[1]), snapshot(body), retry_rejected=retries)
                responses = player.offer(offer, now)
            case ">":
                responses = player.request(words[1], arguments_of(words[2:]), now)
            case "wait":
                now += float(words[1])
                responses = player.tick(now)
            case "reconnect":
                player = make()
            case "=":
                check(player, words[1], " ".join(words[2:]), command)
            case _:
                raise AssertionError(f"no such command: {command}")
        wanted = player.expected(expected)
        assert responses == wanted, f"after {command!r} the responses are {responses}, not {wanted}"


def check(player: Player, what: str, expected: str, command: str) -> None:
    """One line that begins with `=`."""
    status = player.session.status
    match what:
        case "state":
            actual = status.state
        case "acked":
            actual = str(status.acked)
        case "next":
            actual = "never" if player.session.next_tick is None else f"{player.session.next_tick:g}"
        case "has":
            type_ = expected.partition(" ")[0]
            versions = status.acked_versions[type_]
            actual = " ".join([type_, *(f"{name}@{version}" for name, version in sorted(versions.items()))])
        case "rejected":
            actual = "; ".join(f"{nack.type} {' '.join(nack.names)}" for nack in status.rejections)
        case _:
            raise AssertionError(f"no such question: {command}")
    assert actual == expected, f"{command!r}, but it is {actual!r}"
