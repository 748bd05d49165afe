"""Features: what of the Gateway API this control plane can do, by the names of the conformance tests.

docs/gateway-api.md has the same list, and what is missing with the reason.
"""

from typing import Final

SUPPORTED: Final = tuple(
    sorted(
        (
            "BackendTLSPolicy",
            "BackendTLSPolicySANValidation",
            "GRPCRoute",
            "Gateway",
            "GatewayAddressEmpty",
            "GatewayHTTPListenerIsolation",
            "GatewayPort8080",
            "HTTPRoute",
            "HTTPRoute303RedirectStatusCode",
            "HTTPRoute307RedirectStatusCode",
            "HTTPRoute308RedirectStatusCode",
            "HTTPRouteBackendProtocolH2C",
            "HTTPRouteBackendProtocolWebSocket",
            "HTTPRouteBackendRequestHeaderModification",
            "HTTPRouteBackendTimeout",
            "HTTPRouteCORS",
            "HTTPRouteHostRewrite",
            "HTTPRouteMethodMatching",
            "HTTPRouteNamedRouteRule",
            "HTTPRouteParentRefPort",
            "HTTPRoutePathRedirect",
            "HTTPRoutePathRewrite",
            "HTTPRoutePortRedirect",
            "HTTPRouteQueryParamMatching",
            "HTTPRouteRequestMirror",
            "HTTPRouteRequestMultipleMirrors",
            "HTTPRouteRequestPercentageMirror",
            "HTTPRouteRequestTimeout",
            "HTTPRouteResponseHeaderModification",
            "HTTPRouteRetry",
            "HTTPRouteRetryBackendTimeout",
            "HTTPRouteRetryConnectionError",
            "HTTPRouteSchemeRedirect",
            "ListenerSet",
            "Mesh",
            "MeshConsumerRoute",
            "ReferenceGrant",
            "TCPRoute",
            "TLSRoute",
        )
    )
)
