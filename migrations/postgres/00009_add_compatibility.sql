-- The oldest program that this schema takes, as the newest migration that program
-- knows: an older one refuses the database, a newer one runs on it even if there are
-- migrations that it does not know. A migration that adds only (tables, indexes,
-- columns with a default) leaves the number. One that takes something away raises it
-- to a version that an earlier release had, whose programs do without; never to its
-- own, as programs of the release before run on after it. Every later schema keeps
-- this table: programs that were released read it.

-- +goose Up
CREATE TABLE compatibility (
    id             bigint PRIMARY KEY,
    oldest_program bigint NOT NULL,
    CONSTRAINT compatibility_one_row_check CHECK (id = 1)
);
INSERT INTO compatibility (id, oldest_program) VALUES (1, 9);

-- +goose Down
DROP TABLE compatibility;
