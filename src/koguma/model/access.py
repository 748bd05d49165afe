"""Access rules of the Kubernetes shape: which verbs on which resources or paths, and who has them."""

from typing import Annotated, Final

import msgspec

from koguma.model.schema import Spec, doc

BUILTIN_ROLES: Final = ("admin", "discovery", "edit", "view")
REST_GROUP: Final = "rest.koguma.io"  # the plain form is an endpoint group of its own
ANY: Final = "*"


class Attempt(msgspec.Struct, frozen=True, cache_hash=True):
    """What a user wants to do: a verb on a resource, or on a path (Kubernetes' authorizer attributes).

    An empty name means no object in particular, an empty namespace all of them or none; so neither is covered
    by a rule for one.
    """

    verb: str
    resource: str = ""
    name: str = ""
    mesh: str = ""
    group: str = REST_GROUP
    path: str = ""
    namespace: str = ""
    subresource: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"{self.verb} {self.path}"
        name = f' "{self.name}"' if self.name else ""
        mesh = f' in mesh "{self.mesh}"' if self.mesh else ""
        group = f".{self.group}" if self.group else ""
        return f"{self.verb} {self.whole_resource}{group}{name}{mesh}"

    @property
    def whole_resource(self) -> str:
        """The resource as rules name it: `meshservices`, `meshservices/status`."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


class Rule(Spec):
    """What is allowed; an empty list of names or meshes means all of them."""

    verbs: Annotated[tuple[str, ...], doc("get, list, watch, create, update, patch, delete, or *.")]
    groups: Annotated[tuple[str, ...], doc("API groups; rest.koguma.io is the plain form.")] = (REST_GROUP,)
    resources: Annotated[tuple[str, ...], doc("Plural paths such as meshtimeouts, or *.")] = ()
    names: Annotated[tuple[str, ...], doc("Only objects of these names.")] = ()
    meshes: Annotated[tuple[str, ...], doc("Only in these meshes.")] = ()
    paths: Annotated[tuple[str, ...], doc("URL paths that are no resource; a final * takes all below.")] = ()


class Role(Spec):
    """A named set of rules."""

    name: Annotated[str, doc("What bindings call it.")]
    rules: Annotated[tuple[Rule, ...], doc("What it allows.")]


class Binding(Spec):
    """Gives a role to users and groups."""

    role: Annotated[str, doc("Name of the role: admin, edit, view, or one of your own.")]
    users: Annotated[tuple[str, ...], doc("User names.")] = ()
    groups: Annotated[tuple[str, ...], doc("Group names.")] = ()
