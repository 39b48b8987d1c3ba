DROP TABLE cosignature;

PRAGMA user_version = 5;
