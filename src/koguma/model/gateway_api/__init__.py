"""The Gateway API's objects: types that the Kubernetes form stores and that the core converts into ours."""
