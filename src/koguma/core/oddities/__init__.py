"""What can be odd in a mesh, one module for each sort of oddity; `core/problems.py` asks them all."""
