DROP TABLE cosignature;
