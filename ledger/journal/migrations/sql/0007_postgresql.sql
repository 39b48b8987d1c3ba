CREATE TABLE fault (
    offence_id BYTEA NOT NULL,
    verifier BYTEA NOT NULL,
    round BIGINT NOT NULL,
    node BYTEA NOT NULL,
    failing TEXT NOT NULL,
    verdict_digest BYTEA NOT NULL,
    in_round BIGINT NOT NULL,
    PRIMARY KEY (offence_id)
);

CREATE INDEX ix_fault_verifier ON fault (verifier);

CREATE TABLE contradiction (
    round BIGINT NOT NULL,
    node BYTEA NOT NULL,
    first_digest BYTEA NOT NULL,
    second_digest BYTEA NOT NULL,
    in_round BIGINT NOT NULL,
    PRIMARY KEY (round, node)
);

CREATE TRIGGER fault_no_update BEFORE UPDATE OF offence_id, verifier, round, node, failing, verdict_digest, in_round ON fault FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER fault_no_delete BEFORE DELETE OR TRUNCATE ON fault FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER contradiction_no_update BEFORE UPDATE OF round, node, first_digest, second_digest, in_round ON contradiction FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER contradiction_no_delete BEFORE DELETE OR TRUNCATE ON contradiction FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();
