"""Who somebody is and what he may do: users, the keys that sign tokens, roles and bindings."""
