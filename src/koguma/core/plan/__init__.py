"""Plan: what a change of stored objects would do to every proxy. Start with `planner`.

The same compile runs on both sides of the change. `planner` finds the proxies whose snapshots differ;
`scopes` says which entries of policies hold for them on either side; `values` and `callers` put the
differences into the words of policies, `envoy_changes` into Envoy's; `effects` says why an object changes
nothing, `risks` what may stop traffic. `consequences` are the objects that a control plane would write
because of the change.
"""
