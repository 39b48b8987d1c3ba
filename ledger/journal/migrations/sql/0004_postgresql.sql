CREATE TABLE log_node (
    place BIGINT NOT NULL,
    node_hash BYTEA NOT NULL,
    PRIMARY KEY (place)
);

CREATE TRIGGER log_node_no_update BEFORE UPDATE OF place, node_hash ON log_node FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER log_node_no_delete BEFORE DELETE OR TRUNCATE ON log_node FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();
