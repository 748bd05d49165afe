"""Identities: certificates, signing keys and tokens. Knows neither the store nor HTTP, and reads no clock."""
