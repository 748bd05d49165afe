"""Checks of proxies: what `koguma check` shows of connected proxies, their tokens, and the proof."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from koguma.control_plane.metrics import Gauge
from koguma.envoy.snapshot import Failure
from koguma.fleet.proxy_state import InstanceState, ProxyState, TokenState
from koguma.fleet.quarantine import HeldResource
from koguma.proof.prover import Prover
from koguma.runtime.checks import Check

_TOKEN_ENDS_SECONDS: Final = 7 * 24 * 3600.0  # before a token's end, from when on a check warns
_TOKEN_ENDS_SHARE: Final = 0.2  # of its life, where that is short
_SHOWN_MAX: Final = 10


def of_proof(prover: Prover, *, has_proxies: bool) -> Iterator[Check]:
    """Whether compiles from scratch are made, and agree."""
    if prover.alarm:
        hint = "please report this with the log; proxies have the right configuration again"
        yield Check("proof", "error", prover.alarm, hint)
    if has_proxies and prover.every_seconds:
        last = f"last made at {prover.last_at:%Y-%m-%dT%H:%M:%SZ}" if prover.last_at else "not made yet"
        if prover.is_overdue():
            why = f"; the last attempt failed: {prover.failure}" if prover.failure else ""
            text = f"{last}, which is longer ago than three times --proof-interval{why}"
            yield Check("proof", "error", text, "proxies are served; please report this with the log")
        elif prover.failure:
            text = f"{last}; the last attempt failed: {prover.failure}"
            yield Check("proof", "warning", text, "it is tried again; the log says more")
        else:
            yield Check("proof", "ok", last)


def proof_gauges(prover: Prover) -> Iterator[Gauge]:
    """Figures of the proof for the metrics page."""
    yield "koguma_proof_runs", "Compiles from scratch that were compared.", "counter", prover.runs
    wrong = prover.mismatches
    yield "koguma_proof_mismatches", "Proxies for which one gave something else.", "counter", wrong
    failed = prover.failures
    yield "koguma_proof_failures", "Compiles from scratch that could not be made.", "counter", failed
    last = prover.last_at.timestamp() if prover.last_at else 0.0
    text = "When a compile from scratch was last compared, in seconds since 1970; 0 for never."
    yield "koguma_proof_last_timestamp_seconds", text, "gauge", last


def of_instances(
    instances: Sequence[InstanceState], problem: str, *, is_global: bool = False
) -> Iterator[Check]:
    """The control planes of the store: who lives, and who is gone while proxies of it are missing.

    No proxy is connected to Global: what it does not know any more is of zones that are offline.
    """
    if problem:
        hint = "start the database; proxies are served meanwhile, and no CA of a mesh is changed"
        yield Check("control planes", "warning", problem, hint)
    for instance in instances:
        if instance.is_gone and instance.n_missing and not (instance.has_stopped or is_global):
            since = f" since {instance.heard_at:%Y-%m-%dT%H:%M:%SZ}" if instance.heard_at else ""
            text = f"{instance.id} gives no sign of life{since}, and {instance.n_missing} of its"
            hint = (
                "proxies connect by themselves where --cp-address names several addresses; look at their logs"
            )
            text = f"{text} {instance.n_proxies} proxies are connected to no other control plane"
            yield Check("control planes", "warning", text, hint)
    living = [each for each in instances if not each.is_gone]
    if len(living) > 1 and not problem:
        yield Check("control planes", "ok", f"{len(living)} on this store: {', '.join(map(_named, living))}")


def _named(instance: InstanceState) -> str:
    started = f" since {instance.started_at:%Y-%m-%dT%H:%M:%SZ}" if instance.started_at else ""
    here, version = "this one, " if instance.is_here else "", instance.version or "unknown version"
    return f"{instance.id} ({here}{version}{started}, proxies: {instance.n_proxies})"


def of_tokens(states: Sequence[ProxyState], now: datetime) -> Iterator[Check]:
    """Tokens that end soon: the proxy is disconnected then, and what it registered is removed."""
    ending = [
        (state.token.ends_at, state) for state in states if state.token and _ends_soon(state.token, now)
    ]
    ending.sort(key=lambda pair: (pair[0], pair[1].key))
    for exp, state in ending[:_SHOWN_MAX]:
        end = datetime.fromtimestamp(exp, now.tzinfo)
        text = f"the token of {state.key} ends at {end:%Y-%m-%dT%H:%M:%SZ}; the proxy is disconnected then"
        command = "koguma token zone" if not state.key.mesh else "koguma token dataplane"
        hint = f"write a new one to the file of --dataplane-token-file: {command}"
        yield Check("tokens", "warning", text, hint)
    if len(ending) > _SHOWN_MAX:
        text = f"the tokens of {len(ending) - _SHOWN_MAX} more proxies end soon"
        yield Check("tokens", "warning", text, "begin with the first ones")


def _ends_soon(token: TokenState, now: datetime) -> bool:
    """Whether a token is in the last days of its life, or in the last fifth of a short one."""
    left = token.ends_at - now.timestamp()
    return left < min(_TOKEN_ENDS_SECONDS, (token.ends_at - token.issued_at) * _TOKEN_ENDS_SHARE)


def of_proxies(states: Sequence[ProxyState]) -> Iterator[Check]:
    """What proxies rejected, what could not be built for them, and whose application is down."""
    rejecting = [state for state in states if state.state == "nack"]
    for state in rejecting:
        yield from _rejections(state)
    for state in states:
        for text in state.not_ready:
            hint = "nobody calls it; start the application, or look at the Dataplane"
            yield Check("proxies", "warning", f"{state.key}: {text}", hint)
    failures: dict[Failure, list[bool]] = {}  # and whether each proxy has an earlier version
    for state in states:
        for failure in state.failures:
            failures.setdefault(failure, []).append(failure.id in state.kept)
    for failure in sorted(failures, key=lambda each: (each.id, each.text)):
        text = f"{failure.type} {failure.name} cannot be built: {failure.text}"
        hint = f"{_instead(failure, failures[failure])}; look at {failure.origin}"
        yield Check("proxies", "error", text, hint)
    if states and not rejecting and not failures:
        yield Check("proxies", "ok", f"{len(states)} connected")


def _rejections(state: ProxyState) -> Iterator[Check]:
    held_ids = {held.id for held in state.held}
    for rejection in state.rejections:
        names = [name for name in rejection.names if (rejection.type, name) not in held_ids]
        if names:
            text = f"{state.key} refused {rejection.type} {', '.join(names)}: {rejection.text.strip()}"
            hint = "it keeps an earlier version of it, if it has one; correct the object"
            yield Check("proxies", "error", text, hint)
    for held in state.held:
        by = f", which {', '.join(held.policies)} changed" if held.policies else ""
        text = f"{state.key} gets no {held.type} {held.name}{by}: {held.text.strip()}"
        yield Check("proxies", "error", text, _hint(held))


def _hint(held: HeldResource) -> str:
    has = "it has the version before" if held.good_version else "it has none"
    if held.is_passing:
        return f"{has}, and tries again by itself; stop what uses the address, or change the object"
    return f"{has}; correct the object"


def _instead(failure: Failure, kept: list[bool]) -> str:
    """What proxies have of something that could not be built."""
    n_kept, n_all = sum(kept), len(kept)
    if failure.type == "policy":
        return "proxies work without this part of what it says"
    if failure.type == "proxy":
        return "it gets nothing new"
    if n_kept == n_all:
        return "proxies keep the version before"
    if not n_kept:
        return "proxies go without it, and have all else"
    return f"{n_kept} of {n_all} proxies keep the version before, the others go without it"
