"""A control plane put together from all other packages."""
