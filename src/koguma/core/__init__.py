"""The questions about the mesh. Pure: it reads its arguments, and nothing else."""
