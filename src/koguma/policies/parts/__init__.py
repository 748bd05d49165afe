"""What several policies share: checks of fields and references, older spellings, pieces of Envoy data."""
