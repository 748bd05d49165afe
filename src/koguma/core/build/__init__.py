"""Build: from what holds for a proxy to what its Envoy gets. Start reading at `snapshot`.

The skeleton of every part is plain Envoy data; what policies say is laid over it (`lay`); the result is
encoded once (`encoding`). Nothing here is keyed by a proxy and a destination: what proxies call is built
per class.
"""
