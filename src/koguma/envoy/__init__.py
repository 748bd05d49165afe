"""Envoy's words: builders of plain data, names, filter order, encode. Knows Envoy, not meshes."""
