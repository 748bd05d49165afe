"""Lint: checks for problems in a mesh, one module for each sort; `core/problems.py` runs them all."""
