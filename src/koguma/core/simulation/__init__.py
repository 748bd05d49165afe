"""Simulation of calls in a mesh: which service a request reaches, what happens to it, and who decides that.

`calls` follows a request from the caller's Envoy to the service, on the configuration that these Envoys get;
`envoy.simulation` does each step. `parties` finds callers and services by the words of users, `deciding` the
entry of a policy, `answers` says whether one may call another.
"""
