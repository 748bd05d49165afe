"""Condition: one thing that the control plane reports on an object."""

from typing import Annotated, Literal

from koguma.model.schema import Spec, doc


class Condition(Spec):
    """One thing that is true of an object, or not, and why."""

    type: Annotated[str, doc("What the condition is about.")]
    status: Annotated[Literal["True", "False", "Unknown"], doc("Whether it holds.")]
    reason: Annotated[str, doc("The reason as one word.")]
    message: Annotated[str, doc("The reason in a sentence.")] = ""
