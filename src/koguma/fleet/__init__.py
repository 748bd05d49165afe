"""The connected proxies: who is let in, what each is to have, what it refused, its certificates."""
