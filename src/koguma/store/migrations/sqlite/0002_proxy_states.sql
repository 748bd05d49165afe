-- What control planes tell each other of their proxies. It changes with every connection, so it is no part of
-- the history: each control plane writes its own rows, and the others read what is newer than what they know.
CREATE TABLE instances (
    instance TEXT PRIMARY KEY,
    beat     INTEGER NOT NULL,
    version  INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    data     BLOB NOT NULL
);

CREATE TABLE proxy_states (
    instance  TEXT NOT NULL,
    kind      TEXT NOT NULL,
    mesh      TEXT NOT NULL,
    zone      TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    version   INTEGER NOT NULL,
    data      BLOB NOT NULL,
    PRIMARY KEY (instance, kind, mesh, zone, namespace, name)
);

CREATE INDEX proxy_states_newest ON proxy_states (instance, version);
