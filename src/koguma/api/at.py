"""The query parameter `at`: a request that is answered as of a past revision."""

from koguma.api.call import Call
from koguma.application import moments
from koguma.application.context import Context
from koguma.model.kind import Kind


async def context_of(call: Call, context: Context, kind: Kind, verb: str = "get") -> Context:
    """The context of a request for objects of a kind: the present, or what the query asks for.

    Where no rule lets the user read any object of the kind, nothing of the past is read for him.
    """
    text = call.query.get("at") if call.has_query else None
    if text is None:
        return context
    context.access.check_any(call.user, (verb,), kind.plural)
    past = await moments.context_at(context, text)
    await moments.check_kind(past, kind)
    return past
