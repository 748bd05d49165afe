"""Webhook failures: which webhooks have not answered since they last did, for `koguma check`."""

from collections import OrderedDict
from collections.abc import Collection
from typing import Final, NamedTuple

_WEBHOOKS_MAX: Final = 256


class FailingWebhook(NamedTuple):
    """A webhook whose last calls failed."""

    name: str
    n_failures: int
    reason: str


class WebhookFailures:
    """The failing webhooks of this control plane; an answer ends the failure."""

    def __init__(self) -> None:
        self._by_name: OrderedDict[str, FailingWebhook] = OrderedDict()

    def among(self, names: Collection[str]) -> list[FailingWebhook]:
        """Those of these names that failed when they were last called."""
        return [self._by_name[name] for name in sorted(set(names) & self._by_name.keys())]

    def failed(self, name: str, reason: str) -> None:
        """A call failed."""
        before = self._by_name.pop(name, FailingWebhook(name, 0, ""))
        self._by_name[name] = FailingWebhook(name, before.n_failures + 1, reason)
        if len(self._by_name) > _WEBHOOKS_MAX:
            self._by_name.popitem(last=False)

    def answered(self, name: str) -> None:
        """A call had its answer."""
        self._by_name.pop(name, None)
