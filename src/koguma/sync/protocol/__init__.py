"""The sync protocol without I/O: messages, sums, and the two ends of one direction."""
