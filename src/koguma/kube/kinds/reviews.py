"""Reviews: questions about identities and rights. They are answered when they are posted, and not stored."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Final

import msgspec

from koguma.kube import field_errors
from koguma.kube.kinds import parts
from koguma.kube.kinds.parts import Time
from koguma.model.kind import Kind, Scope, ValidationContext
from koguma.model.schema import SecretText, Spec, doc
from koguma.model.violation import Violation

AUTHENTICATION: Final = "authentication.k8s.io"
AUTHORIZATION: Final = "authorization.k8s.io"
TOKEN_SECONDS: Final = 3600
TOKEN_SECONDS_MIN: Final = 600
TOKEN_SECONDS_MAX: Final = 1 << 32
AUDIENCE_BYTES_MAX: Final = 2048  # a token has to fit into a header


class UserInfo(Spec):
    """Who somebody is."""

    username: Annotated[str | None, doc("The name, unique among users.")] = None
    uid: Annotated[str | None, doc("What tells apart two users who had the same name in turn.")] = None
    groups: Annotated[tuple[str, ...] | None, doc("The groups that the user is in.")] = None
    extra: Annotated[Mapping[str, tuple[str, ...]] | None, doc("What else is known of the user.")] = None


class TokenReviewSpec(Spec):
    """The token that is asked about."""

    token: Annotated[SecretText | None, doc("The token.")] = None
    audiences: Annotated[tuple[str, ...] | None, doc("For whom it should be; the API by default.")] = None


class TokenReviewStatus(Spec):
    """Whose token it is."""

    authenticated: Annotated[bool | None, doc("Whether the token holds.")] = None
    user: Annotated[UserInfo | None, doc("Whose it is.")] = None
    audiences: Annotated[tuple[str, ...] | None, doc("For whom it is, of those that were asked.")] = None
    error: Annotated[str | None, doc("Why it could not be looked at.")] = None


class BoundObjectReference(Spec):
    """The object that a token ends with."""

    kind: Annotated[str | None, doc("Its kind: Secret.")] = None
    api_version: Annotated[str | None, doc("Its API version: v1.")] = None
    name: Annotated[str | None, doc("Its name.")] = None
    uid: Annotated[str | None, doc("Its uid; that of the object of this name by default.")] = None


class TokenRequestSpec(Spec):
    """For whom the token is, for how long, and what it ends with."""

    audiences: Annotated[tuple[str, ...] | None, doc("For whom it is; the API by default.")] = None
    expiration_seconds: Annotated[int | None, doc("How long it holds; an hour by default.")] = None
    bound_object_ref: Annotated[
        BoundObjectReference | None, doc("A Secret in the same namespace that the token ends with.")
    ] = None


class TokenRequestStatus(Spec):
    """The token."""

    token: Annotated[SecretText | None, doc("The token.")] = None
    expiration_timestamp: Annotated[Time | None, doc("Until when it holds.")] = None


class SelfSubjectReviewSpec(Spec):
    """Nothing to say: the question is who asks."""


class SelfSubjectReviewStatus(Spec):
    """Who asks."""

    user_info: Annotated[UserInfo | None, doc("Who asks.")] = None


class ReviewedRequirement(Spec):
    """One thing that must be true of a field or a label."""

    key: Annotated[str | None, doc("The field or label.")] = None
    operator: Annotated[str | None, doc("In, NotIn, Exists or DoesNotExist.")] = None
    values: Annotated[tuple[str, ...] | None, doc("Values, with In and NotIn.")] = None


class ReviewedSelector(Spec):
    """The selector of a list or watch that is asked about."""

    raw_selector: Annotated[str | None, doc("As it stands in a request.")] = None
    requirements: Annotated[tuple[ReviewedRequirement, ...] | None, doc("Read into parts.")] = None


class ResourceAttributes(Spec):
    """A request for resources."""

    namespace: Annotated[str | None, doc("The namespace; all of them by default.")] = None
    verb: Annotated[str | None, doc("The verb, such as get; * is all.")] = None
    group: Annotated[str | None, doc("The group; * is all.")] = None
    version: Annotated[str | None, doc("The version; * is all.")] = None
    resource: Annotated[str | None, doc("The plural; * is all.")] = None
    subresource: Annotated[str | None, doc("The subresource; none by default.")] = None
    name: Annotated[str | None, doc("The object's name; all by default.")] = None
    field_selector: Annotated[ReviewedSelector | None, doc("Only objects with these fields.")] = None
    label_selector: Annotated[ReviewedSelector | None, doc("Only objects with these labels.")] = None


class NonResourceAttributes(Spec):
    """A request for a path that is no resource."""

    path: Annotated[str | None, doc("The path.")] = None
    verb: Annotated[str | None, doc("The verb, such as get.")] = None


class SelfSubjectAccessReviewSpec(Spec):
    """What the asking user would like to do: one of the two."""

    resource_attributes: Annotated[ResourceAttributes | None, doc("A request for resources.")] = None
    non_resource_attributes: Annotated[
        NonResourceAttributes | None, doc("A request for a path that is no resource.")
    ] = None


class SubjectAccessReviewSpec(SelfSubjectAccessReviewSpec):
    """What a user would like to do."""

    user: Annotated[str | None, doc("The user's name.")] = None
    groups: Annotated[tuple[str, ...] | None, doc("The user's groups.")] = None
    extra: Annotated[Mapping[str, tuple[str, ...]] | None, doc("What else is known of the user.")] = None
    uid: Annotated[str | None, doc("The user's uid.")] = None


class SubjectAccessReviewStatus(Spec):
    """Whether it is allowed."""

    allowed: Annotated[bool | None, doc("Whether it is allowed.")] = None
    denied: Annotated[bool | None, doc("Whether it is refused whatever else allows it.")] = None
    reason: Annotated[str | None, doc("Why.")] = None
    evaluation_error: Annotated[str | None, doc("What went wrong on the way to the answer.")] = None


class SelfSubjectRulesReviewSpec(Spec):
    """Where."""

    namespace: Annotated[str | None, doc("The namespace that is asked about.")] = None


class ReviewedResourceRule(Spec):
    """What is allowed on resources."""

    verbs: Annotated[tuple[str, ...] | None, doc("What is allowed; * is everything.")] = None
    api_groups: Annotated[tuple[str, ...] | None, doc("In these groups; * is all.")] = None
    resources: Annotated[tuple[str, ...] | None, doc("On these resources; * is all.")] = None
    resource_names: Annotated[tuple[str, ...] | None, doc("Only objects of these names.")] = None


class ReviewedPathRule(Spec):
    """What is allowed on paths that are no resources."""

    verbs: Annotated[tuple[str, ...] | None, doc("What is allowed; * is everything.")] = None
    non_resource_urls: Annotated[tuple[str, ...] | None, doc("On these paths.")] = msgspec.field(
        name="nonResourceURLs", default=None
    )


class SelfSubjectRulesReviewStatus(Spec):
    """What the asking user may do."""

    resource_rules: Annotated[tuple[ReviewedResourceRule, ...] | None, doc("On resources.")] = None
    non_resource_rules: Annotated[tuple[ReviewedPathRule, ...] | None, doc("On paths.")] = None
    incomplete: Annotated[bool | None, doc("Whether there may be more than is listed.")] = None
    evaluation_error: Annotated[str | None, doc("What went wrong on the way to the answer.")] = None


def validate_token_request(spec: TokenRequestSpec, _context: ValidationContext) -> Iterator[Violation]:
    """Durations that are too short or too long, and audiences that no token can carry."""
    seconds = TOKEN_SECONDS if spec.expiration_seconds is None else spec.expiration_seconds
    at = "spec.expirationSeconds"
    if seconds < TOKEN_SECONDS_MIN:
        yield field_errors.invalid(at, seconds, "may not specify a duration less than 10 minutes", "range")
    if seconds > TOKEN_SECONDS_MAX:
        yield field_errors.invalid(
            at, seconds, "may not specify a duration larger than 2^32 seconds", "range"
        )
    if sum(len(audience.encode()) for audience in spec.audiences or ()) > AUDIENCE_BYTES_MAX:
        yield field_errors.too_long("spec.audiences", AUDIENCE_BYTES_MAX)


def validate_token(spec: TokenReviewSpec, _context: ValidationContext) -> Iterator[Violation]:
    """A question without a token."""
    if not spec.token:
        yield field_errors.required("spec.token", "token is required for TokenReview in authentication")


def validate_self(spec: SelfSubjectAccessReviewSpec, _context: ValidationContext) -> Iterator[Violation]:
    """Questions about nothing, or about two things at once."""
    resource, path = spec.resource_attributes, spec.non_resource_attributes
    if resource is not None and path is not None:
        message = "cannot be specified in combination with resourceAttributes"
        yield field_errors.invalid(
            "spec.nonResourceAttributes", msgspec.to_builtins(path), message, "exclusive"
        )
    if resource is None and path is None:
        message = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        yield field_errors.invalid("spec.resourceAttributes", None, message, "exclusive")


def validate_subject(spec: SubjectAccessReviewSpec, context: ValidationContext) -> Iterator[Violation]:
    """Questions about nothing, or about nobody."""
    yield from validate_self(spec, context)
    if not spec.user and not spec.groups:
        message = "at least one of user or group must be specified"
        yield field_errors.invalid("spec.user", spec.user or "", message, "user")


def validate_local(spec: SubjectAccessReviewSpec, context: ValidationContext) -> Iterator[Violation]:
    """Questions about another namespace than the one in which they are asked."""
    yield from validate_subject(spec, context)
    resource, path = spec.resource_attributes, spec.non_resource_attributes
    if resource is not None and (resource.namespace or "") != context.namespace:
        at = "spec.resourceAttributes.namespace"
        yield field_errors.invalid(at, resource.namespace or "", "must match metadata.namespace", "namespace")
    if path is not None:
        message = "disallowed on this kind of request"
        yield field_errors.invalid(
            "spec.nonResourceAttributes", msgspec.to_builtins(path), message, "namespace"
        )


def validate_rules(spec: SelfSubjectRulesReviewSpec, _context: ValidationContext) -> Iterator[Violation]:
    """A question about no namespace."""
    if not spec.namespace:
        yield field_errors.required("spec.namespace", "no namespace on request")


TOKEN = Kind(
    name="TokenReview",
    plural="tokenreviews",
    set_name=f"TokenReview.{AUTHENTICATION}",
    group=AUTHENTICATION,
    doc="Asks whose token this is.",
    spec=TokenReviewSpec,
    status=TokenReviewStatus,
    scope=Scope.GLOBAL,
    namespaced=False,
    admin_only=True,
    clean=parts.without_nulls,
    validate=validate_token,
)

TOKEN_REQUEST = Kind(
    name="TokenRequest",
    plural="tokenrequests",
    set_name=f"TokenRequest.{AUTHENTICATION}",
    group=AUTHENTICATION,
    doc="Asks for a token of a service account.",
    spec=TokenRequestSpec,
    status=TokenRequestStatus,
    scope=Scope.GLOBAL,
    clean=parts.without_nulls,
    validate=validate_token_request,
)

SELF = Kind(
    name="SelfSubjectReview",
    plural="selfsubjectreviews",
    set_name=f"SelfSubjectReview.{AUTHENTICATION}",
    group=AUTHENTICATION,
    doc="Asks who I am.",
    spec=SelfSubjectReviewSpec,
    status=SelfSubjectReviewStatus,
    scope=Scope.GLOBAL,
    namespaced=False,
    inline=True,
    at_root=True,
)

SUBJECT_ACCESS = Kind(
    name="SubjectAccessReview",
    plural="subjectaccessreviews",
    set_name=f"SubjectAccessReview.{AUTHORIZATION}",
    group=AUTHORIZATION,
    doc="Asks whether somebody may do something.",
    spec=SubjectAccessReviewSpec,
    status=SubjectAccessReviewStatus,
    scope=Scope.GLOBAL,
    namespaced=False,
    clean=parts.without_nulls,
    validate=validate_subject,
)

SELF_ACCESS = Kind(
    name="SelfSubjectAccessReview",
    plural="selfsubjectaccessreviews",
    set_name=f"SelfSubjectAccessReview.{AUTHORIZATION}",
    group=AUTHORIZATION,
    doc="Asks whether I may do something.",
    spec=SelfSubjectAccessReviewSpec,
    status=SubjectAccessReviewStatus,
    scope=Scope.GLOBAL,
    namespaced=False,
    clean=parts.without_nulls,
    validate=validate_self,
)

LOCAL_ACCESS = Kind(
    name="LocalSubjectAccessReview",
    plural="localsubjectaccessreviews",
    set_name=f"LocalSubjectAccessReview.{AUTHORIZATION}",
    group=AUTHORIZATION,
    doc="Asks whether somebody may do something in this namespace.",
    spec=SubjectAccessReviewSpec,
    status=SubjectAccessReviewStatus,
    scope=Scope.GLOBAL,
    clean=parts.without_nulls,
    validate=validate_local,
)

SELF_RULES = Kind(
    name="SelfSubjectRulesReview",
    plural="selfsubjectrulesreviews",
    set_name=f"SelfSubjectRulesReview.{AUTHORIZATION}",
    group=AUTHORIZATION,
    doc="Asks what I may do in a namespace.",
    spec=SelfSubjectRulesReviewSpec,
    status=SelfSubjectRulesReviewStatus,
    scope=Scope.GLOBAL,
    namespaced=False,
    clean=parts.without_nulls,
    validate=validate_rules,
)
