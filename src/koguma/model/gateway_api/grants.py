"""Grants: ReferenceGrant, with which a namespace lets others refer to what is in it."""

from typing import Annotated

import msgspec

from koguma.model.gateway_api.references import GroupName, KindName, NamespaceName, ObjectName
from koguma.model.schema import Spec, doc


class GrantFrom(Spec):
    """Who may refer: all objects of a kind in a namespace."""

    group: Annotated[GroupName, doc("Group of the kind.")]
    kind: Annotated[KindName, doc("The kind.")]
    namespace: Annotated[NamespaceName, doc("The namespace.")]


class GrantTo(Spec):
    """What may be referred to in the namespace of the grant."""

    group: Annotated[GroupName, doc("Group of the kind; empty for the core group.")]
    kind: Annotated[KindName, doc("The kind.")]
    name: Annotated[ObjectName | None, doc("One object; all of the kind by default.")] = None


class ReferenceGrantSpec(Spec):
    """Who may refer to what in this namespace."""

    from_: Annotated[
        tuple[GrantFrom, ...], doc("Who may refer; each entry is enough.", min_length=1, max_length=16)
    ] = msgspec.field(name="from")
    to: Annotated[
        tuple[GrantTo, ...], doc("What they may refer to; each entry is enough.", min_length=1, max_length=16)
    ]
