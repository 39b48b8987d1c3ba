CREATE TABLE log_node (
    place INTEGER NOT NULL,
    node_hash BLOB NOT NULL,
    PRIMARY KEY (place)
)
 STRICT;

CREATE TRIGGER log_node_no_update BEFORE UPDATE OF place, node_hash ON log_node BEGIN SELECT RAISE(ABORT, 'log_node is append-only'); END;

CREATE TRIGGER log_node_no_delete BEFORE DELETE ON log_node BEGIN SELECT RAISE(ABORT, 'log_node is append-only'); END;

CREATE TRIGGER log_node_no_replace_0 BEFORE INSERT ON log_node WHEN EXISTS (SELECT 1 FROM log_node WHERE place = NEW.place) BEGIN SELECT RAISE(ABORT, 'log_node is append-only'); END;

PRAGMA user_version = 4;
