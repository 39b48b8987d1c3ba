DROP TABLE log_node;

PRAGMA user_version = 3;
