"""The application layer: what a write is and who may make it, whatever form or port it came through.

`api`, `fleet` and `reconcile` stand on it; it stands on `access` and `store`, and knows no HTTP.
"""
