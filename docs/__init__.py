"""The documents, and what makes their reference part from the code."""
