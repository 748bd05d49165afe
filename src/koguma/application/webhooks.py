"""Admission webhooks: servers that are asked before a user's write is committed, and may change or refuse it.

First the mutating ones, one after another, on an object that is not validated yet; then, when it is, the
validating ones, all at once. Each sees the object in the version that its rule names, whichever endpoint or
form the write came through: a write of the plain form is one to the endpoint of the storage version.

They are asked about what users write, never about what the control plane writes by itself, what proxies
register, or what a backup restores; nor about webhook configurations, so that a broken one can be mended.
"""

import asyncio
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
import structlog

from koguma.application import admission_candidate, namespaces
from koguma.application.admission_review import (
    AdmissionAnswer,
    AdmissionRequest,
    UnreadableReview,
    answer,
    object_document,
    review,
    scale_paths,
)
from koguma.application.context import Context
from koguma.kube import codec, match_conditions, webhook_rules
from koguma.kube.custom import scale
from koguma.kube.kinds import webhooks as kinds
from koguma.kube.kinds.core import NAMESPACE
from koguma.kube.registry import KubeEndpoint
from koguma.kube.webhook_rules import Webhook
from koguma.model import json_patch
from koguma.model.errors import BadRequest, Invalid, KogumaError, TooLarge
from koguma.model.resource import Resource
from koguma.model.schema import Json
from koguma.runtime.outgoing_calls import CallFailed

_FORBIDDEN: Final = 403
_NOT_ADMITTED: Final = "Not admitted"
_CONFIGURATIONS: Final = frozenset({kinds.VALIDATING.stored_as, kinds.MUTATING.stored_as})

_log = structlog.get_logger("koguma.webhooks")
_encode = msgspec.json.Encoder().encode


class WebhookDenied(KogumaError):
    """A webhook refuses a write, with a code and a reason of its own."""

    def __init__(self, webhook: str, refusal: AdmissionAnswer) -> None:
        text = f'admission webhook "{webhook}" denied the request'
        words = refusal.message or refusal.reason
        super().__init__(f"{text}: {words}" if words else f"{text} without explanation", title=_NOT_ADMITTED)
        self.code = refusal.code or _FORBIDDEN
        self.reason = refusal.reason or ("Forbidden" if self.code == _FORBIDDEN else "")

    @property
    def status(self) -> int:  # type: ignore[override]
        """The code that the webhook chose."""
        return self.code


class WebhookFailed(KogumaError):
    """A webhook that must be asked cannot be, or gives no usable answer."""

    title = _NOT_ADMITTED

    def __init__(self, webhook: str, reason: str) -> None:
        super().__init__(f'failed calling webhook "{webhook}": {reason}')


class MatchedWebhook(NamedTuple):
    """A webhook that a write concerns, and the endpoint in whose version it sees the object."""

    webhook: Webhook
    endpoint: KubeEndpoint


class Mutated(NamedTuple):
    """An object after the mutating webhooks, and warnings for its writer."""

    candidate: Resource
    warnings: tuple[str, ...] = ()


class WebhookCache:
    """The webhooks of stored configurations, read once for each revision."""

    def __init__(self) -> None:
        self._by_kind: dict[str, tuple[tuple[Resource, ...], tuple[Webhook, ...]]] = {}

    def webhooks(self, configurations: tuple[Resource, ...], kind: str) -> tuple[Webhook, ...]:
        """All webhooks, by the name of their configuration and then in its order."""
        known = self._by_kind.get(kind)
        if known is None or known[0] is not configurations:
            ordered = sorted(configurations, key=lambda each: each.name)
            hooks = tuple(hook for each in ordered for hook in webhook_rules.webhooks_of(each))
            known = self._by_kind[kind] = (configurations, hooks)
        return known[1]


class AdmissionWebhooks:
    """Asks the webhooks of a control plane."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._cache = WebhookCache()

    def has_mutating(self, request: AdmissionRequest) -> bool:
        """Whether a mutating webhook may be about a write; selectors and conditions are not asked yet."""
        return any(self._concerned(request, kinds.MUTATING.stored_as))

    @property
    def has_mutating_configurations(self) -> bool:
        """Whether there are mutating webhooks at all."""
        return bool(self._context.state.listed(kinds.MUTATING.stored_as))

    async def mutated(self, request: AdmissionRequest, candidate: Resource) -> Mutated:
        """What the mutating webhooks make of an object that is not validated yet, one after another."""
        warnings: list[str] = []
        # Where a later webhook changes the object, those before it may be asked once more.
        returned: dict[int, Resource] = {}
        concerned = list(self._concerned(request, kinds.MUTATING.stored_as))
        for is_second in (False, True):
            for index, matched in enumerate(concerned):
                is_reinvoked = matched.webhook.is_reinvoked and returned.get(index, candidate) != candidate
                if is_second and not is_reinvoked:
                    continue
                given = await self._asked(matched, request, candidate)
                if given is None:
                    continue
                warnings += given.warnings
                if given.patch:
                    seen = await self._context.conversions.converted(candidate, matched.endpoint)
                    patched = self._patched(matched, request, seen, given.patch)
                    candidate = candidate if patched is seen else patched
                returned[index] = candidate
        candidate = await self._context.conversions.converted(candidate, request.endpoint)
        return Mutated(candidate, tuple(warnings))

    async def validate(self, request: AdmissionRequest, new: Resource | None) -> tuple[str, ...]:
        """Ask the validating webhooks, all at once; warnings for the writer, or the first refusal."""
        concerned = list(self._concerned(request, kinds.VALIDATING.stored_as))
        if not concerned:
            return ()
        results = await asyncio.gather(
            *(self._asked(matched, request, new) for matched in concerned), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result
        answers = (given for given in results if isinstance(given, AdmissionAnswer))
        return tuple(text for given in answers for text in given.warnings)

    async def delete(self, request: AdmissionRequest) -> tuple[str, ...]:
        """Ask all webhooks about a deletion; warnings for the writer."""
        warnings: list[str] = []
        for matched in self._concerned(request, kinds.MUTATING.stored_as):
            given = await self._asked(matched, request, None)
            warnings += given.warnings if given is not None else ()
        return (*warnings, *await self.validate(request, None))

    def _concerned(self, request: AdmissionRequest, kind: str) -> Iterator[MatchedWebhook]:
        configurations = self._context.state.listed(kind)
        if not configurations or request.endpoint.set.kind is None:
            return
        if request.endpoint.set.stored_as in _CONFIGURATIONS:
            return
        registry = self._context.catalog.registry
        for hook in self._cache.webhooks(configurations, kind):
            endpoint = hook.endpoint(
                request.operation,
                request.endpoint,
                request.subresource,
                registry,
                namespaced=request.endpoint.namespaced,
            )
            if endpoint is not None:
                yield MatchedWebhook(hook, endpoint)

    async def _asked(
        self, matched: MatchedWebhook, request: AdmissionRequest, new: Resource | None
    ) -> AdmissionAnswer | None:
        """The answer of a webhook that allows the write; None where it is not asked, or may fail."""
        hook = matched.webhook
        if not hook.selects(self._namespace_labels(request, new), (new, request.old)):
            return None
        question = await self._question(matched, request, new)
        try:
            if not _conditions_hold(hook, question["request"]):
                return None
            given = await self._called(hook, question, request.seconds_left)
        except WebhookFailed as error:
            if not hook.ignores_failure:
                raise
            _log.warning("webhook failed and is ignored", webhook=hook.name, reason=error.detail)
            return None
        if not given.allowed:
            raise WebhookDenied(hook.name, given)
        return given

    async def _question(
        self, matched: MatchedWebhook, request: AdmissionRequest, new: Resource | None
    ) -> dict[str, Json]:
        """The review of a write, with both objects converted to the version that the webhook gets."""
        conversions, endpoint = self._context.conversions, matched.endpoint
        seen = await conversions.converted(new, endpoint) if new is not None else None
        olds = await conversions.shown([request.old] if request.old is not None else [], endpoint)
        return review(request, endpoint, seen, next(iter(olds), None), self._context.control_plane)

    async def _called(self, hook: Webhook, question: Json, seconds_left: float) -> AdmissionAnswer:
        seconds = min(hook.timeout_seconds, seconds_left)
        url = f"{hook.url}?timeout={hook.timeout_seconds}s"
        try:
            body = await self._context.calls.post_json(
                url, _encode(question), ca_bundle=hook.ca_bundle, timeout_seconds=seconds
            )
            given = answer(body, question["request"]["uid"])
        except (CallFailed, UnreadableReview) as error:
            self._context.webhook_failures.failed(hook.name, str(error))
            raise WebhookFailed(hook.name, f'failed to call webhook: Post "{url}": {error}') from None
        self._context.webhook_failures.answered(hook.name)
        return given

    def _namespace_labels(self, request: AdmissionRequest, new: Resource | None) -> dict[str, str] | None:
        """The labels of the namespace that the object is in; a Namespace is selected by its own."""
        if request.endpoint.set.stored_as == NAMESPACE.stored_as:
            namespace = new or request.old
        elif not request.namespace:
            return None
        else:
            stored = self._context.state.get(namespaces.namespace_key(request.namespace))
            namespace = stored or namespaces.new_namespace(request.namespace)
        return dict(namespace.labels) if namespace is not None else {}

    def _patched(
        self, matched: MatchedWebhook, request: AdmissionRequest, candidate: Resource, patch: bytes
    ) -> Resource:
        """The object with a webhook's patch, converted back to the storage version."""
        control_plane, endpoint = self._context.control_plane, matched.endpoint
        document = object_document(candidate, request, endpoint, control_plane)
        try:
            changed = json_patch.json_patched(document, msgspec.json.decode(patch), json_patch.KUBERNETES)
            if changed == document:
                return candidate
            if (paths := scale_paths(request, endpoint)) is not None:
                changed = scale.scaled(codec.document(candidate, endpoint, control_plane), changed, paths)
            decoded = codec.read(changed, endpoint, request.namespace, request.name)
        except (msgspec.DecodeError, UnicodeDecodeError, BadRequest, Invalid, TooLarge) as error:
            raise WebhookFailed(matched.webhook.name, f"its patch cannot be applied: {error}") from None
        if decoded.unknown:
            listed = ", ".join(each.field for each in decoded.unknown)
            raise WebhookFailed(matched.webhook.name, f"its patch sets fields that do not exist: {listed}")
        if candidate.mesh and decoded.draft.mesh not in (None, candidate.mesh):
            raise WebhookFailed(matched.webhook.name, "its patch moves the object to another mesh")
        return admission_candidate.with_decoded(candidate, decoded, endpoint)


def _conditions_hold(hook: Webhook, request: Json) -> bool:
    """Whether all match conditions are true; one that cannot be evaluated fails, unless another is false."""
    variables = {"object": request["object"], "oldObject": request["oldObject"], "request": request}
    failure = ""
    for name, expression in hook.conditions:
        try:
            if not match_conditions.compiled(expression)(variables):
                return False
        except match_conditions.CelError as error:
            failure = failure or f'match condition "{name}" cannot be evaluated: {error}'
    if failure:
        raise WebhookFailed(hook.name, failure)
    return True
