"""Custom resources: from stored definitions to endpoints, and the documents of their objects."""
