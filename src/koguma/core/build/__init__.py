"""Build: from the rules of a proxy to the resources that its Envoy gets. Start reading at `snapshot`.

Skeletons are plain Envoy data; overlays of policies are merged into them (`overlay_merge`); the result is
encoded once (`encoding`). Nothing here is keyed by a proxy and a destination: what proxies call is built
per class.
"""
