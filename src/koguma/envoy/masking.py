"""Masking: hides secrets in what Envoy's admin interface shows.

Envoy hides the fields that its messages mark as sensitive. That is not all: the header of a request to add, a
token in initial metadata and inline data of a TLS context are shown as they are. So fields are hidden here by
their names, values of headers by the header's name, and tokens and private keys wherever they stand. The
agent does that before an answer leaves the machine, and the control plane does it again.
"""

import re
from typing import Any, Final

import msgspec

from koguma.model.redacted import SHOWN
from koguma.model.schema import Json

# Fields of Envoy that are secret, or hold inline data of which a part may be; a test compares them with those
# that its messages mark. Their names are as in a config dump.
HIDDEN_FIELDS: Final = frozenset(
    {
        "access_token",
        "auth_password",
        "auth_username",
        "backend_token",
        "certificate_chain",
        "client_secret",
        "context_extensions",
        "credentials",
        "credentials_data_source",
        "crl",
        "downstream_auth_password",
        "downstream_auth_passwords",
        "downstream_auth_username",
        "generic_secret",
        "hmac_secret",
        "ocsp_staple",
        "password",
        "pkcs12",
        "private_key",
        "private_key_provider",
        "secret_access_key",
        "secret_data",
        "session_ticket_keys",
        "session_token",
        "token_secret",
        "trusted_ca",
        "users",
        "web_identity_token_data_source",
    }
)
# What may be seen of a hidden field: where a secret is, not what it is.
_SEEN: Final = frozenset(
    {"@type", "name", "filename", "environment_variable", "path", "sds_config", "provider_name"}
)
_SECRET_HEADER: Final = re.compile(
    r"authorization|cookie|token|secret|password|passwd|api[-_]?key|credential|signature", re.IGNORECASE
)
_HEADER_VALUES: Final = (
    "value",
    "raw_value",
    "string_match",
    "exact_match",
    "contains_match",
    "prefix_match",
)
_TOKEN: Final = re.compile(r"eyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]*")
_PRIVATE_KEY: Final = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*KEY-----|\Z)", re.DOTALL
)
_BEARER: Final = re.compile(r"\b(Bearer|Basic) [A-Za-z0-9._~+/=-]{8,}")


class NotJson(ValueError):
    """Text that is no JSON, or is nested too deeply."""


def masked_json(text: bytes) -> bytes:
    """JSON of the admin interface without its secrets, without spaces; NotJson where it cannot be read."""
    try:
        return msgspec.json.encode(_masked(msgspec.json.decode(text)))
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise NotJson(type(error).__name__) from None


def masked_text(text: str) -> str:
    """A text with tokens and private keys hidden."""
    if "eyJ" in text:
        text = _TOKEN.sub(SHOWN, text)
    if "PRIVATE KEY" in text:
        text = _PRIVATE_KEY.sub(SHOWN, text)
    return _BEARER.sub(rf"\1 {SHOWN}", text) if "Bearer " in text or "Basic " in text else text


def _masked(value: Json) -> Json:
    if isinstance(value, str):
        return masked_text(value)
    if isinstance(value, list):
        return [_masked(each) for each in value]
    if not isinstance(value, dict):
        return value
    hides_values = _is_secret_header(value)
    return {
        masked_text(name): _hidden(each)
        if name in HIDDEN_FIELDS or (hides_values and name in _HEADER_VALUES)
        else _masked(each)
        for name, each in value.items()
    }


def _is_secret_header(value: dict[str, Any]) -> bool:
    """Whether it is a header to add, metadata to send or a header to match, whose value is a secret."""
    name = value.get("key", value.get("name", value.get("header_name")))
    return isinstance(name, str) and _SECRET_HEADER.search(name) is not None


def _hidden(value: Json) -> Json:
    """A value with all texts in it hidden, but names, paths and types."""
    if isinstance(value, str):
        return SHOWN
    if isinstance(value, list):
        return [_hidden(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: _masked(each) if name in _SEEN else _hidden(each) for name, each in value.items()}
