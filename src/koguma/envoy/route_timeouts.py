"""Timeouts and retries that a route's own rule sets, over those of MeshTimeout and MeshRetry.

    timeouts: {request, backendRequest}     for a request with all its tries, and for each try; 0s is no limit
    retry: {codes, attempts, backoff}       which answers are tried again, how often, and how long it waits

`request` comes instead of MeshTimeout's requestTimeout and `backendRequest` instead of MeshRetry's
perTryTimeout. `retry` comes instead of all else that a MeshRetry says. Connections that fail or break, and
tries that take too long, are tried again as well. Envoy waits at random, up to `backoff` before the first
retry and longer before the next ones.
"""

from typing import Final

from koguma.envoy import proto_json
from koguma.envoy.proto_json import Data
from koguma.model import duration
from koguma.model.schema import Json

_CONDITIONS: Final = ("connect-failure", "refused-stream", "reset")
_ATTEMPTS: Final = 1
_MAX_INTERVAL_FACTOR: Final = 10  # Envoy's own


def has_try_limit(conf: Json) -> bool:
    """Whether a rule limits each try, so that a default for the whole request would get in its way."""
    timeouts = conf.get("timeouts") or {}
    return timeouts.get("backendRequest") is not None and timeouts.get("request") is None


def applied(action: Data, conf: Json) -> Data:
    """A RouteAction with what the rule itself says."""
    timeouts, retry = conf.get("timeouts") or {}, conf.get("retry")
    if timeouts.get("request") is not None:
        action = {**action, "timeout": proto_json.seconds(timeouts["request"])}
    policy = dict(action.get("retry_policy") or {})
    if retry is not None:
        kept = {name: value for name, value in policy.items() if name == "per_try_timeout"}
        policy = {**kept, **_retry_policy(retry)}
    if timeouts.get("backendRequest") is not None:
        policy["per_try_timeout"] = proto_json.seconds(timeouts["backendRequest"])
    return {**action, "retry_policy": policy} if policy else action


def _retry_policy(retry: Json) -> Data:
    attempts = retry.get("attempts")
    codes = list(dict.fromkeys(retry.get("codes") or ()))
    conditions = (*_CONDITIONS, "retriable-status-codes") if codes else _CONDITIONS
    policy: Data = {
        "retry_on": ",".join(conditions),
        "num_retries": _ATTEMPTS if attempts is None else attempts,
    }
    if codes:
        policy["retriable_status_codes"] = codes
    backoff_ns = duration.nanoseconds(retry.get("backoff") or "0")
    if backoff_ns:
        longest = duration.text(backoff_ns * _MAX_INTERVAL_FACTOR)
        policy["retry_back_off"] = {
            "base_interval": proto_json.seconds(retry["backoff"]),
            "max_interval": proto_json.seconds(longest),
        }
    return policy
