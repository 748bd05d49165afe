"""Logs: events with fields, as JSON lines or as text, with secrets masked before anything is written."""

import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, Final

import structlog

MASK: Final = "«redacted»"
_SECRET_FIELDS: Final = re.compile(
    r"token$|secret$|password|authorization|private|^key$|^data$|credential", re.IGNORECASE
)
_SECRET_TEXTS: Final = (
    re.compile(r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+"),  # a JWT
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)", re.DOTALL),
    re.compile(r"(?<=://)[^/@\s:]*:[^/@\s]+(?=@)"),  # user:password@ in an address
)

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure(level: str, log_format: str) -> None:
    """Send all events to standard error, ours and those of libraries, in one shape."""
    text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        masked,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        cache_logger_on_first_use=False,
    )
    renderer = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        if text
        else structlog.processors.JSONRenderer()
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    # What is no HTTP is answered with 400; a line with a traceback for each would help only an attacker.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[level])


def masked(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The event with what looks like a secret hidden: by the field's name, and by the text's form."""
    for name, value in event.items():
        event[name] = _masked(name, value)
    return event


def _masked(name: str, value: Any) -> Any:
    if _SECRET_FIELDS.search(name) and value not in (None, ""):
        return MASK
    if isinstance(value, str):
        return masked_text(value)
    if isinstance(value, Mapping):
        return {str(key): _masked(str(key), part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_masked("", part) for part in value]
    return value


def masked_text(text: str) -> str:
    """A text with tokens, private keys and passwords hidden."""
    for pattern in _SECRET_TEXTS:
        text = pattern.sub(MASK, text)
    return text
