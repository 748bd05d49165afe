"""The words of the house: resource, kind, key, KRI, schema, violation. Imports nothing of ours."""
