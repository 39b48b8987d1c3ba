DROP TRIGGER posting_balanced;

CREATE TRIGGER posting_balanced AFTER INSERT ON posting
WHEN NEW.line = (SELECT lines - 1 FROM journal_entry WHERE id = NEW.entry)
BEGIN
    SELECT RAISE(ABORT, 'the entry does not sum to zero') WHERE EXISTS (
        SELECT 1 FROM posting JOIN account ON account.id = posting.account
        WHERE posting.entry = NEW.entry GROUP BY account.asset HAVING sum(posting.amount) <> 0);
    SELECT RAISE(ABORT, 'lines of the entry are missing') WHERE NEW.line + 1 <>
        (SELECT count(*) FROM posting WHERE entry = NEW.entry);
END;

DROP TRIGGER account_balance;

DROP TABLE pending_posting;

DROP TABLE balance;

DROP TABLE pending_entry;

PRAGMA user_version = 2;
