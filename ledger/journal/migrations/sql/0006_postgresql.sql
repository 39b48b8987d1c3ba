CREATE TABLE cosignature (
    size BIGINT NOT NULL,
    verifier BYTEA NOT NULL,
    line TEXT NOT NULL,
    PRIMARY KEY (size, verifier),
    FOREIGN KEY(size) REFERENCES checkpoint (size)
);

CREATE TRIGGER cosignature_no_update BEFORE UPDATE OF size, verifier, line ON cosignature FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER cosignature_no_delete BEFORE DELETE OR TRUNCATE ON cosignature FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();
