"""The Kubernetes form over HTTP: paths, answers and streams as kubectl and its kin expect them."""
