"""HTTP: the plain REST form, discovery, inspection and tokens, over one store and one set of rules."""
