"""What turns the code's own records into pages of docs/reference."""
