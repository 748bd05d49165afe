"""`make release` and `make audit`: packages, SBOM, provenance, and a check for known vulnerabilities."""
