"""Koguma: a service-mesh control plane that speaks Kuma, drives Envoy, and says why."""

__version__ = "0.1.0"
