"""Simulation: what an Envoy with a given configuration does with one request.

It walks plain data of Envoy's resources as Envoy would: listener, filter chain, HTTP filters, route, cluster,
endpoint. It knows nothing of meshes (`core.simulation` does). What it cannot judge, such as scripts and
filters that it does not know, it says: it never guesses. Start reading at `proxy`.
"""
