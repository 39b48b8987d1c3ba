CREATE OR REPLACE FUNCTION books_entry_is_whole() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.lines <> (SELECT count(*) FROM posting WHERE entry = NEW.id) THEN
        RAISE EXCEPTION 'lines of the entry are missing' USING ERRCODE = '23000';
    END IF;
    IF EXISTS (SELECT 1 FROM posting JOIN account ON account.id = posting.account
               WHERE posting.entry = NEW.id GROUP BY account.asset HAVING sum(posting.amount) <> 0) THEN
        RAISE EXCEPTION 'the entry does not sum to zero' USING ERRCODE = '23000';
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION books_take_postings() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM fresh JOIN journal_entry ON journal_entry.id = fresh.entry
               WHERE fresh.line NOT BETWEEN 0 AND journal_entry.lines - 1) THEN
        RAISE EXCEPTION 'the entry did not announce this posting'
            USING ERRCODE = '23000';
    END IF;
    RETURN NULL;
END $$;

DROP TRIGGER account_balance ON account;

DROP TABLE pending_posting;

DROP TABLE balance;

DROP TABLE pending_entry;

DROP FUNCTION books_pending_is_whole;

DROP FUNCTION books_posted_is_entered;

DROP FUNCTION books_release;

DROP FUNCTION books_resolve_once;

DROP FUNCTION books_hold_postings;

DROP FUNCTION books_open_accounts;
