"""What `make release` and `make audit` do: artefacts, their parts, where they come from, known holes."""
