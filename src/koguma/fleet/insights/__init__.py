"""Insights in Kuma's shapes: what is known of proxies, meshes, services and zones, when it is read."""
