"""The delta xDS protocol without I/O: requests go in, responses come out.

Start with `session`. It knows a proxy in one of four states: `opening` while the stream has only sent its
first subscriptions, `first_sync` while a new one gets its first configuration, `synced` once everything is
acknowledged, and `tracked` otherwise, with one `type_state` for each resource type. `planner` builds
responses from a tracked state; it asks `dependencies` whether what a resource references is there, and
`removals` whether something may be removed. Time is always an argument, so a test reads as a script and a
simulated day takes no time.
"""
