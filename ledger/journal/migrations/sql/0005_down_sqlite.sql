DROP TABLE invoice;

PRAGMA user_version = 4;
