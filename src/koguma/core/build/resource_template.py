"""Resource templates: resources that many proxies have alike but for texts of their own, as name and address.

A builder is run once with placeholders in place of these texts, for all proxies that are alike otherwise;
each proxy then gets the encoded result with its own texts filled in. A template is checked before it is used:
it is filled with other texts and compared with what the builder gives for them. Where the bytes differ there
is no template, and the resources are built for every proxy.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from koguma.envoy.encode import Encoder
from koguma.envoy.message_template import MessageTemplate
from koguma.envoy.snapshot import TYPE_URLS, Failure, Id, XdsResource, version_of

Texts = tuple[str, ...]
Builder = Callable[[Texts], Iterable[XdsResource | Failure]]

_TEXTS_MAX: Final = 32
# A private-use character that is hardly ever in a text of a mesh; where it is, there is no template.
_START: Final = "\ue000"
_PLACEHOLDERS: Final = tuple(f"{_START}{number:02}\ue001" for number in range(_TEXTS_MAX))
# For the check: longer than names and addresses are, so that Envoy's rules about length are met.
_CHECK_TEXTS: Final = tuple(f"{number:02}".ljust(1000, "x") for number in range(_TEXTS_MAX))


def placeholders(texts: Texts) -> Texts | None:
    """A placeholder for each text; None where there cannot be a template for these texts."""
    # Protobuf does not serialize empty texts, and Envoy's rules refuse many.
    return _PLACEHOLDERS[: len(texts)] if all(texts) and len(texts) <= _TEXTS_MAX else None


def has_placeholders(data: bytes) -> bool:
    """Whether data that all proxies share contains what looks like a placeholder."""
    return _START.encode() in data


class _ResourceTemplate(NamedTuple):
    """A resource with placeholders in its name, in what it needs, or in its body."""

    type: str
    name: str
    needs: tuple[Id, ...]
    body: MessageTemplate

    def filled(self, texts: Mapping[str, str]) -> XdsResource:
        """The resource with texts in place of their placeholders."""
        body = self.body.filled(texts)
        needs = self.needs  # one tuple for all proxies, unless a name of the proxy's own is in it
        if any(name in texts for _, name in needs):
            needs = tuple((type_, texts.get(name, name)) for type_, name in needs)
        return XdsResource(self.type, texts.get(self.name, self.name), version_of(body), body, needs)


def _template(encoder: Encoder, resource: XdsResource, marked: Texts) -> _ResourceTemplate | XdsResource:
    """A resource as a template; the resource itself where it has no placeholders and all proxies share it."""
    message_type = TYPE_URLS[resource.type].rpartition("/")[2]
    body = MessageTemplate(encoder.schema, message_type, resource.body, marked)
    named = (resource.name, *(name for _, name in resource.needs))
    if not body.has_slots and not any(_START in name for name in named):
        return resource
    return _ResourceTemplate(resource.type, resource.name, resource.needs, body)


class ResourceTemplates:
    """Resources with placeholders, to be filled with the texts of a proxy."""

    def __init__(self, encoder: Encoder, resources: Iterable[XdsResource], marked: Texts) -> None:
        self._placeholders = marked
        self._templates = tuple(_template(encoder, resource, marked) for resource in resources)

    def filled(self, texts: Texts) -> tuple[XdsResource, ...] | None:
        """The resources of a proxy with these texts; None where a text cannot be filled in."""
        own = dict(zip(self._placeholders, texts, strict=True))
        try:
            return tuple(
                each if isinstance(each, XdsResource) else each.filled(own) for each in self._templates
            )
        except (TypeError, ValueError):  # no text, or one that protobuf refuses; the encoder reports it
            return None


def checked(encoder: Encoder, build: Builder, n_texts: int) -> ResourceTemplates | None:
    """What `build` gives for so many texts, as templates; None where it fails, or where the check does."""
    marked, others = _PLACEHOLDERS[:n_texts], _CHECK_TEXTS[:n_texts]
    built, expected = tuple(build(marked)), tuple(build(others))
    resources = tuple(each for each in built if isinstance(each, XdsResource))
    if len(resources) < len(built):
        return None
    templates = ResourceTemplates(encoder, resources, marked)
    return templates if _with_needs(templates.filled(others) or ()) == _with_needs(expected) else None


def _with_needs(built: Iterable[XdsResource | Failure]) -> list[tuple[XdsResource | Failure, object]]:
    """Resources with what they need, which does not count when they are compared."""
    return [(each, each.needs if isinstance(each, XdsResource) else ()) for each in built]
