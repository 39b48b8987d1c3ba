CREATE TABLE pending_entry (
    id INTEGER NOT NULL,
    "key" TEXT NOT NULL,
    request_hash BLOB NOT NULL,
    kind TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    block_number INTEGER NOT NULL,
    block_hash BLOB NOT NULL,
    lines INTEGER NOT NULL,
    recorded_ms INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL,
    state TEXT NOT NULL,
    resolved_ms INTEGER,
    PRIMARY KEY (id),
    CHECK (state IN ('pending', 'posted', 'voided', 'expired')),
    CHECK ((state = 'pending') = (resolved_ms IS NULL)),
    UNIQUE ("key")
)
 STRICT;

CREATE INDEX ix_pending_entry_due ON pending_entry (expires_ms) WHERE state = 'pending';

CREATE TABLE balance (
    account INTEGER NOT NULL,
    side INTEGER NOT NULL,
    posted INTEGER NOT NULL,
    debits_pending INTEGER NOT NULL,
    credits_pending INTEGER NOT NULL,
    PRIMARY KEY (account),
    CHECK (side IN (-1, 1)),
    CHECK (debits_pending >= 0 AND credits_pending >= 0),
    CONSTRAINT no_overdraft CHECK (CASE side WHEN 1 THEN posted >= credits_pending ELSE -posted >= debits_pending END),
    FOREIGN KEY(account) REFERENCES account (id)
)
 STRICT;

CREATE TABLE pending_posting (
    pending INTEGER NOT NULL,
    line INTEGER NOT NULL,
    account INTEGER NOT NULL,
    amount INTEGER NOT NULL,
    PRIMARY KEY (pending, line),
    CHECK (amount <> 0),
    FOREIGN KEY(pending) REFERENCES pending_entry (id),
    FOREIGN KEY(account) REFERENCES account (id)
)
 STRICT;

CREATE INDEX ix_pending_posting_account ON pending_posting (account);

CREATE TRIGGER account_balance AFTER INSERT ON account
BEGIN
    INSERT INTO balance VALUES
        (NEW.id, CASE WHEN substr(NEW.kind, 1, 6) = 'asset:' THEN 1 ELSE -1 END, 0, 0, 0);
END;

CREATE TRIGGER pending_entry_at_first BEFORE INSERT ON pending_entry WHEN NEW.state <> 'pending'
BEGIN SELECT RAISE(ABORT, 'an entry that waits is pending at first'); END;

CREATE TRIGGER pending_entry_once BEFORE UPDATE OF state, resolved_ms ON pending_entry
WHEN OLD.state <> 'pending' OR NEW.state = 'pending'
BEGIN SELECT RAISE(ABORT, 'a pending entry is resolved once'); END;

CREATE TRIGGER pending_entry_released AFTER UPDATE OF state ON pending_entry
BEGIN
    UPDATE balance SET debits_pending = debits_pending - held.debits,
        credits_pending = credits_pending - held.credits
    FROM (SELECT account, CASE WHEN amount > 0 THEN amount ELSE 0 END AS debits,
              CASE WHEN amount < 0 THEN -amount ELSE 0 END AS credits
          FROM pending_posting WHERE pending = NEW.id) AS held
    WHERE balance.account = held.account;
END;

DROP TRIGGER posting_balanced;

CREATE TRIGGER posting_balanced AFTER INSERT ON posting
WHEN NEW.line = (SELECT lines - 1 FROM journal_entry WHERE id = NEW.entry)
BEGIN
    SELECT RAISE(ABORT, 'the entry does not sum to zero') WHERE EXISTS (
        SELECT 1 FROM posting JOIN account ON account.id = posting.account
        WHERE posting.entry = NEW.entry GROUP BY account.asset HAVING sum(posting.amount) <> 0);
    SELECT RAISE(ABORT, 'lines of the entry are missing') WHERE NEW.line + 1 <>
        (SELECT count(*) FROM posting WHERE entry = NEW.entry);
    SELECT RAISE(ABORT, 'two postings of one account') WHERE EXISTS (
        SELECT 1 FROM posting WHERE entry = NEW.entry GROUP BY account HAVING count(*) > 1);
    UPDATE balance SET posted = posted + moved.amount
    FROM (SELECT account, amount FROM posting WHERE entry = NEW.entry) AS moved
    WHERE balance.account = moved.account;
END;

CREATE TRIGGER pending_posting_announced BEFORE INSERT ON pending_posting
WHEN NEW.line NOT BETWEEN 0 AND (SELECT lines - 1 FROM pending_entry WHERE id = NEW.pending)
BEGIN SELECT RAISE(ABORT, 'the entry did not announce this posting'); END;

CREATE TRIGGER pending_posting_balanced AFTER INSERT ON pending_posting
WHEN NEW.line = (SELECT lines - 1 FROM pending_entry WHERE id = NEW.pending)
BEGIN
    SELECT RAISE(ABORT, 'the entry does not sum to zero') WHERE EXISTS (
        SELECT 1 FROM pending_posting JOIN account ON account.id = pending_posting.account
        WHERE pending_posting.pending = NEW.pending GROUP BY account.asset HAVING sum(pending_posting.amount) <> 0);
    SELECT RAISE(ABORT, 'lines of the entry are missing') WHERE NEW.line + 1 <>
        (SELECT count(*) FROM pending_posting WHERE pending = NEW.pending);
    SELECT RAISE(ABORT, 'two postings of one account') WHERE EXISTS (
        SELECT 1 FROM pending_posting WHERE pending = NEW.pending GROUP BY account HAVING count(*) > 1);
    UPDATE balance SET debits_pending = debits_pending + held.debits,
        credits_pending = credits_pending + held.credits
    FROM (SELECT account, CASE WHEN amount > 0 THEN amount ELSE 0 END AS debits,
              CASE WHEN amount < 0 THEN -amount ELSE 0 END AS credits
          FROM pending_posting WHERE pending = NEW.pending) AS held
    WHERE balance.account = held.account;
END;

CREATE TRIGGER balance_no_update BEFORE UPDATE OF account, side ON balance BEGIN SELECT RAISE(ABORT, 'balance is append-only'); END;

CREATE TRIGGER balance_no_delete BEFORE DELETE ON balance BEGIN SELECT RAISE(ABORT, 'balance is append-only'); END;

CREATE TRIGGER balance_no_replace_0 BEFORE INSERT ON balance WHEN EXISTS (SELECT 1 FROM balance WHERE account = NEW.account) BEGIN SELECT RAISE(ABORT, 'balance is append-only'); END;

CREATE TRIGGER pending_entry_no_update BEFORE UPDATE OF id, key, request_hash, kind, epoch, block_number, block_hash, lines, recorded_ms, expires_ms ON pending_entry BEGIN SELECT RAISE(ABORT, 'pending_entry is append-only'); END;

CREATE TRIGGER pending_entry_no_delete BEFORE DELETE ON pending_entry BEGIN SELECT RAISE(ABORT, 'pending_entry is append-only'); END;

CREATE TRIGGER pending_entry_no_replace_0 BEFORE INSERT ON pending_entry WHEN EXISTS (SELECT 1 FROM pending_entry WHERE id = NEW.id) BEGIN SELECT RAISE(ABORT, 'pending_entry is append-only'); END;

CREATE TRIGGER pending_entry_no_replace_1 BEFORE INSERT ON pending_entry WHEN EXISTS (SELECT 1 FROM pending_entry WHERE key = NEW.key) BEGIN SELECT RAISE(ABORT, 'pending_entry is append-only'); END;

CREATE TRIGGER pending_posting_no_update BEFORE UPDATE OF pending, line, account, amount ON pending_posting BEGIN SELECT RAISE(ABORT, 'pending_posting is append-only'); END;

CREATE TRIGGER pending_posting_no_delete BEFORE DELETE ON pending_posting BEGIN SELECT RAISE(ABORT, 'pending_posting is append-only'); END;

CREATE TRIGGER pending_posting_no_replace_0 BEFORE INSERT ON pending_posting WHEN EXISTS (SELECT 1 FROM pending_posting WHERE pending = NEW.pending AND line = NEW.line) BEGIN SELECT RAISE(ABORT, 'pending_posting is append-only'); END;

INSERT INTO balance
SELECT account.id, CASE WHEN substr(account.kind, 1, 6) = 'asset:' THEN 1 ELSE -1 END,
    coalesce(sum(posting.amount), 0), 0, 0
FROM account LEFT JOIN posting ON posting.account = account.id
GROUP BY account.id, account.kind;

PRAGMA user_version = 3;
