"""Proof: compares what the engine keeps in memory with a compile from scratch, now and then."""
