-- The oldest revisions at which all objects are known, and those of kinds with a short history. Before, a
-- compaction also removed what had been superseded a moment ago, so what is known begins here where one ran.
ALTER TABLE counter ADD COLUMN oldest INTEGER NOT NULL DEFAULT 0;
ALTER TABLE counter ADD COLUMN oldest_short INTEGER NOT NULL DEFAULT 0;
UPDATE counter SET oldest = revision, oldest_short = revision WHERE compacted > 0;

-- Which revision was the newest at a time.
CREATE INDEX changes_by_time ON changes (time, revision);
