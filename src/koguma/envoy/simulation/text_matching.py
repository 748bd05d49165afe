"""Text matching: Envoy's StringMatcher, HeaderMatcher and QueryParameterMatcher.

Regular expressions are those of RE2 and must match the whole text. Sources: string.proto and
route_components.proto; where these are silent, what Envoy does.
"""

from functools import lru_cache
from typing import Any, Final

import re2

from koguma.envoy.simulation.traffic import SimulatedRequest, Undecidable
from koguma.model.schema import Json

_WHOLE: Final = ("exact", "prefix", "suffix", "contains")


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> Any:
    try:
        return re2.compile(pattern)
    except re2.error as error:
        raise Undecidable(f'the regular expression "{pattern}" cannot be read: {error}') from None


def full_match(pattern: str, text: str) -> bool:
    """Whether a regular expression matches all of a text."""
    return _compiled(pattern).fullmatch(text) is not None


def replaced(pattern: str, substitution: str, text: str) -> str:
    """A text in which all matches of a regular expression are replaced."""
    return str(_compiled(pattern).sub(substitution, text))


def is_text(matcher: Json, text: str) -> bool:
    """Whether a StringMatcher matches a text."""
    if "safe_regex" in matcher:
        return full_match(matcher["safe_regex"]["regex"], text)
    kind = next((name for name in _WHOLE if name in matcher), None)
    if kind is None:
        raise Undecidable(f"a matcher of texts with {', '.join(sorted(matcher)) or 'nothing'} is not known")
    wanted = matcher[kind]
    if matcher.get("ignore_case"):
        wanted, text = wanted.lower(), text.lower()
    match kind:
        case "exact":
            return bool(text == wanted)
        case "prefix":
            return text.startswith(wanted)
        case "suffix":
            return text.endswith(wanted)
        case _:
            return wanted in text


def has_header(matcher: Json, request: SimulatedRequest) -> bool:
    """Whether a HeaderMatcher matches; a header that is missing matches nothing but its absence.

    Of several values one that matches is enough.
    """
    values = request.values(str(matcher["name"]).lower())
    is_inverted = bool(matcher.get("invert_match"))
    if "string_match" not in matcher and not _is_presence(matcher):
        others = sorted(set(matcher) - {"name", "invert_match", "treat_missing_header_as_empty"})
        raise Undecidable(f'a condition on header "{matcher["name"]}" with {", ".join(others)} is not known')
    if _is_presence(matcher):
        is_present = bool(values) or bool(matcher.get("treat_missing_header_as_empty"))
        return bool((is_present == matcher.get("present_match", True)) != is_inverted)
    if not values and matcher.get("treat_missing_header_as_empty"):
        values = ("",)
    return bool(values) and any(is_text(matcher["string_match"], each) for each in values) != is_inverted


def _is_presence(matcher: Json) -> bool:
    """Whether only the presence of a header is asked for; a matcher without any condition asks for that."""
    return "present_match" in matcher or not set(matcher) - {"name", "invert_match"}


def has_parameter(matcher: Json, request: SimulatedRequest) -> bool:
    """Whether a QueryParameterMatcher matches; of several values the first counts."""
    value = next((value for name, value in request.query if name == matcher["name"]), None)
    if "string_match" in matcher:
        return value is not None and is_text(matcher["string_match"], value)
    return bool((value is not None) == matcher.get("present_match", True))
