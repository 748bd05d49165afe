"""The Kubernetes form without I/O: endpoints over storage sets, conversion, patches, ownership, tables."""
