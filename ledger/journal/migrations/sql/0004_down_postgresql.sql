DROP TABLE log_node;
