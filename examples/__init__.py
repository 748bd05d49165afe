"""Examples that run: `make demo` is one of them."""
