CREATE TABLE cosignature (
    size INTEGER NOT NULL,
    verifier BLOB NOT NULL,
    line TEXT NOT NULL,
    PRIMARY KEY (size, verifier),
    FOREIGN KEY(size) REFERENCES checkpoint (size)
)
 STRICT;

CREATE TRIGGER cosignature_no_update BEFORE UPDATE OF size, verifier, line ON cosignature BEGIN SELECT RAISE(ABORT, 'cosignature is append-only'); END;

CREATE TRIGGER cosignature_no_delete BEFORE DELETE ON cosignature BEGIN SELECT RAISE(ABORT, 'cosignature is append-only'); END;

CREATE TRIGGER cosignature_no_replace_0 BEFORE INSERT ON cosignature WHEN EXISTS (SELECT 1 FROM cosignature WHERE size = NEW.size AND verifier = NEW.verifier) BEGIN SELECT RAISE(ABORT, 'cosignature is append-only'); END;

PRAGMA user_version = 6;
