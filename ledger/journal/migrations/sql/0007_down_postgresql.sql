DELETE FROM cursor WHERE name = 'next_faults';

DROP TABLE contradiction;

DROP TABLE fault;
