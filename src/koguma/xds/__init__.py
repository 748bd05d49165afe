"""xDS: the protocol without I/O, and the gRPC server around it."""
