CREATE TABLE pending_entry (
    id BIGINT NOT NULL,
    key TEXT NOT NULL,
    request_hash BYTEA NOT NULL,
    kind TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    block_number BIGINT NOT NULL,
    block_hash BYTEA NOT NULL,
    lines BIGINT NOT NULL,
    recorded_ms BIGINT NOT NULL,
    expires_ms BIGINT NOT NULL,
    state TEXT NOT NULL,
    resolved_ms BIGINT,
    PRIMARY KEY (id),
    CHECK (state IN ('pending', 'posted', 'voided', 'expired')),
    CHECK ((state = 'pending') = (resolved_ms IS NULL)),
    UNIQUE (key)
);

CREATE INDEX ix_pending_entry_due ON pending_entry (expires_ms) WHERE state = 'pending';

CREATE TABLE balance (
    account BIGINT NOT NULL,
    side BIGINT NOT NULL,
    posted BIGINT NOT NULL,
    debits_pending BIGINT NOT NULL,
    credits_pending BIGINT NOT NULL,
    PRIMARY KEY (account),
    CHECK (side IN (-1, 1)),
    CHECK (debits_pending >= 0 AND credits_pending >= 0),
    CONSTRAINT no_overdraft CHECK (CASE side WHEN 1 THEN posted >= credits_pending ELSE -posted >= debits_pending END),
    FOREIGN KEY(account) REFERENCES account (id)
);

CREATE TABLE pending_posting (
    pending BIGINT NOT NULL,
    line BIGINT NOT NULL,
    account BIGINT NOT NULL,
    amount BIGINT NOT NULL,
    PRIMARY KEY (pending, line),
    CHECK (amount <> 0),
    FOREIGN KEY(pending) REFERENCES pending_entry (id),
    FOREIGN KEY(account) REFERENCES account (id)
);

CREATE INDEX ix_pending_posting_account ON pending_posting (account);

CREATE FUNCTION books_open_accounts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO balance
        SELECT id, CASE WHEN left(kind, 6) = 'asset:' THEN 1 ELSE -1 END, 0, 0, 0 FROM fresh;
    RETURN NULL;
END $$;

CREATE TRIGGER account_balance AFTER INSERT ON account
REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION books_open_accounts();

CREATE OR REPLACE FUNCTION books_take_postings() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM fresh JOIN journal_entry ON journal_entry.id = fresh.entry
               WHERE fresh.line NOT BETWEEN 0 AND journal_entry.lines - 1) THEN
        RAISE EXCEPTION 'the entry did not announce this posting' USING ERRCODE = '23000';
    END IF;
    UPDATE balance SET posted = posted + moved.amount
    FROM (SELECT account, sum(amount) AS amount FROM fresh GROUP BY account) AS moved
    WHERE balance.account = moved.account;
    RETURN NULL;
END $$;

CREATE FUNCTION books_hold_postings() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM fresh JOIN pending_entry ON pending_entry.id = fresh.pending
               WHERE fresh.line NOT BETWEEN 0 AND pending_entry.lines - 1) THEN
        RAISE EXCEPTION 'the entry did not announce this posting' USING ERRCODE = '23000';
    END IF;
    UPDATE balance SET debits_pending = debits_pending + held.debits,
        credits_pending = credits_pending + held.credits
    FROM (SELECT account, coalesce(sum(amount) FILTER (WHERE amount > 0), 0) AS debits,
              coalesce(-sum(amount) FILTER (WHERE amount < 0), 0) AS credits
          FROM fresh GROUP BY account) AS held
    WHERE balance.account = held.account;
    RETURN NULL;
END $$;

CREATE FUNCTION books_resolve_once() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' AND NEW.state <> 'pending' THEN
        RAISE EXCEPTION 'an entry that waits is pending at first' USING ERRCODE = '23000';
    END IF;
    IF TG_OP = 'UPDATE' AND (OLD.state <> 'pending' OR NEW.state = 'pending') THEN
        RAISE EXCEPTION 'a pending entry is resolved once' USING ERRCODE = '23000';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER pending_entry_once BEFORE INSERT OR UPDATE OF state, resolved_ms ON pending_entry
FOR EACH ROW EXECUTE FUNCTION books_resolve_once();

CREATE FUNCTION books_release() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE balance SET debits_pending = debits_pending - held.debits,
        credits_pending = credits_pending - held.credits
    FROM (SELECT account, CASE WHEN amount > 0 THEN amount ELSE 0 END AS debits,
              CASE WHEN amount < 0 THEN -amount ELSE 0 END AS credits
          FROM pending_posting WHERE pending = NEW.id) AS held
    WHERE balance.account = held.account;
    RETURN NULL;
END $$;

CREATE TRIGGER pending_entry_released AFTER UPDATE OF state ON pending_entry
FOR EACH ROW EXECUTE FUNCTION books_release();

CREATE FUNCTION books_posted_is_entered() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM pending_entry WHERE id = NEW.id AND state = 'posted')
            <> EXISTS (SELECT 1 FROM journal_entry WHERE key = NEW.key) THEN
        RAISE EXCEPTION 'a pending entry is in the journal if it was posted, and only then'
            USING ERRCODE = '23000';
    END IF;
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER pending_entry_entered AFTER INSERT OR UPDATE OF state ON pending_entry
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION books_posted_is_entered();

CREATE OR REPLACE FUNCTION books_entry_is_whole() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.lines <> (SELECT count(*) FROM posting WHERE entry = NEW.id) THEN
        RAISE EXCEPTION 'lines of the entry are missing' USING ERRCODE = '23000';
    END IF;
    IF EXISTS (SELECT 1 FROM posting JOIN account ON account.id = posting.account
               WHERE posting.entry = NEW.id GROUP BY account.asset HAVING sum(posting.amount) <> 0) THEN
        RAISE EXCEPTION 'the entry does not sum to zero' USING ERRCODE = '23000';
    END IF;
    IF EXISTS (SELECT 1 FROM posting WHERE entry = NEW.id GROUP BY account HAVING count(*) > 1) THEN
        RAISE EXCEPTION 'two postings of one account' USING ERRCODE = '23000';
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION books_pending_is_whole() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.lines <> (SELECT count(*) FROM pending_posting WHERE pending = NEW.id) THEN
        RAISE EXCEPTION 'lines of the entry are missing' USING ERRCODE = '23000';
    END IF;
    IF EXISTS (SELECT 1 FROM pending_posting JOIN account ON account.id = pending_posting.account
               WHERE pending_posting.pending = NEW.id GROUP BY account.asset HAVING sum(pending_posting.amount) <> 0) THEN
        RAISE EXCEPTION 'the entry does not sum to zero' USING ERRCODE = '23000';
    END IF;
    IF EXISTS (SELECT 1 FROM pending_posting WHERE pending = NEW.id GROUP BY account HAVING count(*) > 1) THEN
        RAISE EXCEPTION 'two postings of one account' USING ERRCODE = '23000';
    END IF;
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER pending_entry_whole AFTER INSERT ON pending_entry
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION books_pending_is_whole();

CREATE TRIGGER pending_posting_announced AFTER INSERT ON pending_posting
REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION books_hold_postings();

CREATE TRIGGER balance_no_update BEFORE UPDATE OF account, side ON balance FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER balance_no_delete BEFORE DELETE OR TRUNCATE ON balance FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER pending_entry_no_update BEFORE UPDATE OF id, key, request_hash, kind, epoch, block_number, block_hash, lines, recorded_ms, expires_ms ON pending_entry FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER pending_entry_no_delete BEFORE DELETE OR TRUNCATE ON pending_entry FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER pending_posting_no_update BEFORE UPDATE OF pending, line, account, amount ON pending_posting FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER pending_posting_no_delete BEFORE DELETE OR TRUNCATE ON pending_posting FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

INSERT INTO balance
SELECT account.id, CASE WHEN substr(account.kind, 1, 6) = 'asset:' THEN 1 ELSE -1 END,
    coalesce(sum(posting.amount), 0), 0, 0
FROM account LEFT JOIN posting ON posting.account = account.id
GROUP BY account.id, account.kind;
