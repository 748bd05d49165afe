"""Questions over a connection: Global waits for answers, and a zone works on them, each within limits."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import structlog

from koguma.model.errors import BadGateway, KogumaError, Unavailable
from koguma.model.violation import cut
from koguma.sync.protocol.messages import (
    REASON_MAX,
    AnswerPart,
    Message,
    NoAnswer,
    QuestionWithdrawn,
    ZoneQuestion,
)
from koguma.sync.protocol.questions import ANSWER_BYTES_MAX, Answer, Answerer, Asker

SECONDS_MAX: Final = 60.0  # that a zone works on one question
_MORE_SECONDS: Final = 2.0  # that Global waits longer than the zone has

# What a zone answers to a question; KogumaError where it has no answer.
Answers = Callable[[ZoneQuestion], Awaitable[bytes]]
Queue = Callable[[Iterator[Message]], None]  # messages that are to be sent

_log = structlog.get_logger("koguma.sync")


class RefusedQuestion(KogumaError):
    """The zone's own error: its sort by name, and its words."""

    def __init__(self, error: str, detail: str) -> None:
        super().__init__(detail)
        self.error = error


class Asking:
    """Global's side of one connection."""

    def __init__(self, queue: Queue) -> None:
        self._asker = Asker()
        self._queue = queue
        self._waiting: dict[int, asyncio.Future[bytes]] = {}

    async def ask(self, name: str, body: bytes, bytes_max: int, seconds_max: float) -> bytes:
        """The zone's answer; RefusedQuestion where it has none, Unavailable where it does not come."""
        question = self._asker.ask(name, body, bytes_max, seconds_max)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[question.number] = answer
        self._queue(iter((question,)))
        try:
            async with asyncio.timeout(seconds_max + _MORE_SECONDS):
                return await answer
        except TimeoutError:
            raise Unavailable(
                f"its control plane did not answer within {seconds_max + _MORE_SECONDS:g} s"
            ) from None
        finally:
            del self._waiting[question.number]
            if (withdrawn := self._asker.withdraw(question.number)) is not None:
                self._queue(iter((withdrawn,)))

    def receive(self, message: AnswerPart | NoAnswer) -> None:
        """Take a part of an answer."""
        found = self._asker.receive(message)
        waiting = self._waiting.get(found.number) if found is not None else None
        if waiting is None or waiting.done():
            return
        if isinstance(found, Answer):
            waiting.set_result(found.body)
        elif found is not None:
            waiting.set_exception(RefusedQuestion(found.error, found.reason))

    def end(self) -> None:
        """The connection has ended: nothing will be answered any more."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(Unavailable("the connection of the zone has ended; try again"))


class Answering:
    """A zone's side of one connection."""

    def __init__(self, answers: Answers, queue: Queue, tasks: asyncio.TaskGroup) -> None:
        self._answerer = Answerer()
        self._answers = answers
        self._queue = queue
        self._tasks = tasks
        self._working: dict[int, asyncio.Task[None]] = {}

    def receive(self, message: ZoneQuestion | QuestionWithdrawn) -> None:
        """Begin with a question, or end it."""
        if isinstance(message, QuestionWithdrawn):
            self._answerer.withdrawn(message.number)
            if (task := self._working.pop(message.number, None)) is not None:
                task.cancel()
            return
        if (refusal := self._answerer.receive(message)) is not None:
            self._queue(iter((refusal,)))
            return
        task = self._working[message.number] = self._tasks.create_task(self._work(message))
        task.add_done_callback(lambda _: self._working.pop(message.number, None))

    def end(self) -> None:
        """The connection has ended: nobody waits any more."""
        for task in self._working.values():
            task.cancel()

    async def _work(self, question: ZoneQuestion) -> None:
        try:
            body = await self._answer(question)
        except KogumaError as error:
            detail = cut(error.detail, REASON_MAX)
            self._queue(self._answerer.refused(NoAnswer(question.number, type(error).__name__, detail)))
        else:
            self._queue(self._answerer.parts(question.number, body))

    async def _answer(self, question: ZoneQuestion) -> bytes:
        try:
            async with asyncio.timeout(min(max(question.seconds_max, 0.0), SECONDS_MAX)):
                body = await self._answers(question)
        except TimeoutError:
            raise Unavailable(f"it has no answer after {question.seconds_max:g} s") from None
        except KogumaError:
            raise
        except Exception:  # noqa: BLE001 - a bug in one answer must not end the connection of the zone
            _log.exception("a question of Global failed", question=question.name)
            raise BadGateway("the zone failed to answer; its log says more") from None
        if len(body) > min(question.bytes_max, ANSWER_BYTES_MAX):
            raise BadGateway(f"the answer has {len(body)} bytes, and {question.bytes_max} are taken")
        return body
