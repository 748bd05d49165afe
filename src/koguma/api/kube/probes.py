"""Probes: `/livez`, `/readyz` and `/healthz`, as Kubernetes' clients and load balancers ask for them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aiohttp import web

from koguma.api.call import Call
from koguma.api.dispatch import HttpEndpoint, RouteMatch

Problem = Callable[[], str]  # why something is not fine; empty where it is

PING: Final = "ping"
_FAILED: Final = 500  # as Kubernetes answers
_HEADERS: Final = {"Cache-Control": "no-cache, private", "X-Content-Type-Options": "nosniff"}


class Probes:
    """Answers `ok`, or with `?verbose` a line for each check; `?exclude=` leaves checks out."""

    def __init__(self, readiness: Mapping[str, Problem]) -> None:
        alive: dict[str, Problem] = {PING: lambda: ""}  # whoever reads the answer knows that it is alive
        self._checks = {"livez": alive, "readyz": {**alive, **readiness}, "healthz": {**alive, **readiness}}
        self._endpoint = HttpEndpoint("health", {"GET": self.answer}, is_open=True)

    def route(self, segments: tuple[str, ...]) -> RouteMatch | None:
        """The endpoint of a probe, or of one of its checks."""
        match segments:
            case (word,) if word in self._checks:
                return self._endpoint, (word, "")
            case (word, check) if check in self._checks.get(word, ()):
                return self._endpoint, (word, check)
        return None

    async def answer(self, call: Call, word: str, check: str) -> web.StreamResponse:
        """One probe; `check` names one of its checks, or is empty."""
        if check:
            problem = self._checks[word][check]()
            return _text(f"internal server error: {problem}\n", _FAILED) if problem else _text("ok")
        lines, failed = self._lines(word, call.query.getall("exclude", []))
        if failed:
            return _text("\n".join((*lines, f"{word} check failed", "")), _FAILED)
        if "verbose" not in call.query:
            return _text("ok")
        return _text("\n".join((*lines, f"{word} check passed", "")))

    def _lines(self, word: str, excluded: Sequence[str]) -> tuple[list[str], bool]:
        lines, failed = [], False
        checks = self._checks[word]
        for name, problem_of in checks.items():
            if name in excluded:
                lines.append(f"[+]{name} excluded: ok")
                continue
            problem = problem_of()
            failed |= bool(problem)
            lines.append(f"[-]{name} failed: {problem}" if problem else f"[+]{name} ok")
        unknown = sorted({f'"{name[:100]}"' for name in excluded if name not in checks})
        if unknown:
            lines.append(
                f"warn: some health checks cannot be excluded: no matches for {','.join(unknown[:10])}"
            )
        return lines, failed


def _text(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, headers=_HEADERS)
