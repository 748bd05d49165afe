"""Offering: what each connected proxy is offered, and in which turn.

That is what was compiled for it, its keys and certificates, and in place of what it refused the version that
it took last. What it refused for a reason that passes by itself is offered again now and then.
"""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Final

import msgspec
import structlog

from koguma.envoy.encode import Encoder
from koguma.envoy.snapshot import SECRET, Bundle, Failure, Snapshot, XdsResource, bundle
from koguma.fleet.certificates import Certificates
from koguma.fleet.connection import ProxyLine
from koguma.fleet.quarantine import Quarantine
from koguma.fleet.retries import Trials
from koguma.identity.sds import Secret
from koguma.model.resource import Key

BATCH: Final = 32  # proxies that are told before others may have a turn

_NO_SECRETS: Final = bundle(())
_log = structlog.get_logger("koguma.fleet")


class Offering:
    """Hands out offers. `lines` are the connected proxies, as they come and go."""

    def __init__(
        self,
        lines: Mapping[Key, ProxyLine],
        quarantine: Quarantine,
        certificates: Certificates,
        encoder: Encoder,
    ) -> None:
        self._lines = lines
        self._quarantine = quarantine
        self._certificates = certificates
        self._encoder = encoder
        self._trials = Trials(self._try_again)
        self._told: set[Failure] = set()

    async def hand_out(self, revision: int, keys: Collection[Key]) -> None:
        """Offer these proxies what they are to have now; equal ones are not told."""
        for number, key in enumerate(self._in_turn(keys)):
            if number % BATCH == 0:  # the first ones are being told while the others are still to come
                await asyncio.sleep(0)
            line = self._lines.get(key)
            if line is not None and line.compiled is not None:
                self._offer(revision, line, line.compiled)

    def forget(self, key: Key) -> None:
        """A proxy has gone."""
        self._trials.forget(key)

    def _in_turn(self, keys: Iterable[Key]) -> Iterator[Key]:
        """These proxies, those together that share what they call, since they are told the same."""
        found: dict[int, list[Key]] = {}
        for key in sorted(keys):
            line = self._lines.get(key)
            if line is not None and line.compiled is not None:
                found.setdefault(id(line.compiled.bundles[0]), []).append(key)
        return chain.from_iterable(found.values())

    def _offer(self, revision: int, line: ProxyLine, made: Snapshot) -> None:
        secrets = self._secrets(line)
        if line.offered.bundles[-1:] != (secrets,):
            line.keep_secrets()
        line.offer(revision, self._quarantine.taken(line.key, Snapshot((*made.bundles, secrets))))
        if self._quarantine.is_passing(line.key):
            self._trials.plan(line.key)
        self._log_failures(made)

    def _try_again(self, key: Key) -> bool:
        """Offer a proxy what it refused for a reason that may have passed; whether there is such a thing."""
        line = self._lines.get(key)
        if line is None or line.compiled is None or not self._quarantine.is_passing(key):
            return False
        if line.status.state in ("synced", "nack"):  # else something is on its way, whose answer is awaited
            whole = Snapshot((*line.compiled.bundles, self._secrets(line)))
            line.offer_again(self._quarantine.trial(key, whole))
        return True

    def _secrets(self, line: ProxyLine) -> Bundle:
        """What a proxy gets of keys and certificates; the very same bundle where nothing changed."""
        found = self._certificates.of(line.key, line.uris)
        if not found:
            return _NO_SECRETS
        made = bundle(self._secret(each, line.offered) for each in found)
        return next((each for each in line.offered.bundles if each == made), made)

    def _secret(self, secret: Secret, before: Snapshot) -> XdsResource:
        known = before.get((SECRET, secret.name))
        if known is not None and known.version == secret.version:
            return known
        # A secret's version says what it is for, not what its bytes are: whoever has it needs no other key.
        made = self._encoder.resource(SECRET, secret.name, secret.data())
        return msgspec.structs.replace(made, version=secret.version)

    def _log_failures(self, made: Snapshot) -> None:
        for failure in made.failures:
            if failure not in self._told:
                self._told.add(failure)
                _log.error(
                    "a part of the configuration cannot be built; proxies go without, or keep the last one",
                    type=failure.type,
                    name=failure.name,
                    origin=failure.origin,
                    reason=failure.text,
                )
