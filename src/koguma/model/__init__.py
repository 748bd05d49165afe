"""The model: resource, kind, key, KRI, schema, violation. Imports nothing of ours."""
