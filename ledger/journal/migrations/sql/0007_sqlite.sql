CREATE TABLE fault (
    offence_id BLOB NOT NULL,
    verifier BLOB NOT NULL,
    round INTEGER NOT NULL,
    node BLOB NOT NULL,
    failing TEXT NOT NULL,
    verdict_digest BLOB NOT NULL,
    in_round INTEGER NOT NULL,
    PRIMARY KEY (offence_id)
)
 STRICT;

CREATE INDEX ix_fault_verifier ON fault (verifier);

CREATE TABLE contradiction (
    round INTEGER NOT NULL,
    node BLOB NOT NULL,
    first_digest BLOB NOT NULL,
    second_digest BLOB NOT NULL,
    in_round INTEGER NOT NULL,
    PRIMARY KEY (round, node)
)
 STRICT;

CREATE TRIGGER fault_no_update BEFORE UPDATE OF offence_id, verifier, round, node, failing, verdict_digest, in_round ON fault BEGIN SELECT RAISE(ABORT, 'fault is append-only'); END;

CREATE TRIGGER fault_no_delete BEFORE DELETE ON fault BEGIN SELECT RAISE(ABORT, 'fault is append-only'); END;

CREATE TRIGGER fault_no_replace_0 BEFORE INSERT ON fault WHEN EXISTS (SELECT 1 FROM fault WHERE offence_id = NEW.offence_id) BEGIN SELECT RAISE(ABORT, 'fault is append-only'); END;

CREATE TRIGGER contradiction_no_update BEFORE UPDATE OF round, node, first_digest, second_digest, in_round ON contradiction BEGIN SELECT RAISE(ABORT, 'contradiction is append-only'); END;

CREATE TRIGGER contradiction_no_delete BEFORE DELETE ON contradiction BEGIN SELECT RAISE(ABORT, 'contradiction is append-only'); END;

CREATE TRIGGER contradiction_no_replace_0 BEFORE INSERT ON contradiction WHEN EXISTS (SELECT 1 FROM contradiction WHERE round = NEW.round AND node = NEW.node) BEGIN SELECT RAISE(ABORT, 'contradiction is append-only'); END;

PRAGMA user_version = 7;
