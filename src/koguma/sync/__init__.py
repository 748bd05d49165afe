"""Sync: objects travel between the Global control plane and those of zones."""
