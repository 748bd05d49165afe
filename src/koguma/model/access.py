"""Access rules of the Kubernetes shape: which verbs on which resources or paths, and who has them."""

from typing import Annotated, Final

from koguma.model.schema import Spec, doc

BUILTIN_ROLES: Final = ("admin", "discovery", "edit", "view")
REST_GROUP: Final = "rest.koguma.io"  # the plain form is an endpoint group of its own


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
