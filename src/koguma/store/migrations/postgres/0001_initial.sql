-- Every accepted write, forever or until compaction: the truth.
CREATE TABLE changes (
    revision       BIGINT PRIMARY KEY,
    transaction_id TEXT NOT NULL,
    time           TEXT NOT NULL,
    author         TEXT NOT NULL,
    reason         TEXT NOT NULL,
    op             TEXT NOT NULL,
    kind           TEXT NOT NULL,
    mesh           TEXT NOT NULL,
    zone           TEXT NOT NULL,
    namespace      TEXT NOT NULL,
    name           TEXT NOT NULL,
    core_name      TEXT NOT NULL,
    body           TEXT NOT NULL
);

CREATE INDEX changes_of_one ON changes (kind, mesh, zone, namespace, name, revision);

-- Which change is the newest of each object that exists.
CREATE TABLE current (
    kind      TEXT NOT NULL,
    mesh      TEXT NOT NULL,
    zone      TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    core_name TEXT NOT NULL,
    revision  BIGINT NOT NULL,
    PRIMARY KEY (kind, mesh, zone, namespace, name),
    UNIQUE (kind, mesh, core_name)
);

-- The newest revision, and the newest one that compaction has removed.
CREATE TABLE counter (
    id        BIGINT PRIMARY KEY,
    revision  BIGINT NOT NULL,
    compacted BIGINT NOT NULL
);

INSERT INTO counter (id, revision, compacted) VALUES (1, 0, 0);
