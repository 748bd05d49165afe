"""Structural schemas: the small language of OpenAPI in which custom resources are described.

A schema is the plain JSON of a definition. Values are pruned, given
defaults, and checked by walking both together.
"""
