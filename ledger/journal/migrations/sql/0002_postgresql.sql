CREATE TABLE account (
    id BIGINT NOT NULL,
    code TEXT NOT NULL,
    kind TEXT NOT NULL,
    role TEXT NOT NULL,
    owner TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    asset TEXT NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (code)
);

CREATE INDEX ix_account_owner ON account (owner);

CREATE TABLE audit (
    round BIGINT NOT NULL,
    node BYTEA NOT NULL,
    drawn_round BIGINT NOT NULL,
    offence_id BYTEA NOT NULL,
    PRIMARY KEY (round, node)
);

CREATE TABLE chain_event (
    block_hash BYTEA NOT NULL,
    log_index BIGINT NOT NULL,
    block_number BIGINT NOT NULL,
    kind TEXT NOT NULL,
    body TEXT NOT NULL,
    state TEXT NOT NULL,
    turns BIGINT NOT NULL,
    PRIMARY KEY (block_hash, log_index),
    CHECK (state IN ('seen', 'orphaned'))
);

CREATE INDEX ix_chain_event_block_number ON chain_event (block_number);

CREATE INDEX ix_chain_event_kind ON chain_event (kind);

CREATE TABLE checkpoint (
    size BIGINT NOT NULL,
    signer BYTEA NOT NULL,
    note TEXT NOT NULL,
    PRIMARY KEY (size)
);

CREATE TABLE contribution (
    round BIGINT NOT NULL,
    node BYTEA NOT NULL,
    epoch BIGINT NOT NULL,
    tokens BIGINT NOT NULL,
    commit_digest BYTEA NOT NULL,
    update_digest BYTEA NOT NULL,
    update_bytes BIGINT NOT NULL,
    loss_micro BIGINT NOT NULL,
    PRIMARY KEY (round, node)
);

CREATE INDEX ix_contribution_epoch ON contribution (epoch);

CREATE TABLE cursor (
    name TEXT NOT NULL,
    value BIGINT NOT NULL,
    PRIMARY KEY (name)
);

CREATE TABLE journal_entry (
    id BIGINT NOT NULL,
    key TEXT NOT NULL,
    request_hash BYTEA NOT NULL,
    kind TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    block_number BIGINT NOT NULL,
    block_hash BYTEA NOT NULL,
    reverses BIGINT,
    lines BIGINT NOT NULL,
    recorded_ms BIGINT NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (key),
    UNIQUE (reverses),
    FOREIGN KEY(reverses) REFERENCES journal_entry (id)
);

CREATE INDEX ix_journal_entry_kind ON journal_entry (kind);

CREATE TABLE log_edge (
    id BIGINT NOT NULL,
    size BIGINT NOT NULL,
    roots BYTEA NOT NULL,
    PRIMARY KEY (id),
    CHECK (id = 0)
);

CREATE TABLE payout (
    epoch BIGINT NOT NULL,
    row_index BIGINT NOT NULL,
    role TEXT NOT NULL,
    peer BYTEA NOT NULL,
    account TEXT NOT NULL,
    amount BIGINT NOT NULL,
    PRIMARY KEY (epoch, row_index),
    CHECK (amount > 0)
);

CREATE TABLE reveal (
    round BIGINT NOT NULL,
    verifier BYTEA NOT NULL,
    PRIMARY KEY (round, verifier)
);

CREATE TABLE round (
    round BIGINT NOT NULL,
    manifest BYTEA NOT NULL,
    aggregate BYTEA NOT NULL,
    signatures BIGINT NOT NULL,
    active BIGINT NOT NULL,
    PRIMARY KEY (round)
);

CREATE TABLE ruling (
    round BIGINT NOT NULL,
    node BYTEA NOT NULL,
    ruling TEXT NOT NULL,
    closed_round BIGINT NOT NULL,
    PRIMARY KEY (round, node)
);

CREATE TABLE settlement (
    epoch BIGINT NOT NULL,
    table_hash BYTEA NOT NULL,
    root BYTEA NOT NULL,
    tokens_paid BIGINT NOT NULL,
    total BIGINT NOT NULL,
    PRIMARY KEY (epoch)
);

CREATE TABLE unpaid (
    round BIGINT NOT NULL,
    node BYTEA NOT NULL,
    epoch BIGINT NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (round, node)
);

CREATE TABLE verdict (
    round BIGINT NOT NULL,
    node BYTEA NOT NULL,
    verifier BYTEA NOT NULL,
    outcome TEXT NOT NULL,
    in_round BIGINT NOT NULL,
    PRIMARY KEY (round, node, verifier)
);

CREATE TABLE log_leaf (
    seq BIGINT NOT NULL,
    entry BIGINT NOT NULL,
    leaf_hash BYTEA NOT NULL,
    PRIMARY KEY (seq),
    UNIQUE (entry),
    FOREIGN KEY(entry) REFERENCES journal_entry (id)
);

CREATE TABLE posting (
    entry BIGINT NOT NULL,
    line BIGINT NOT NULL,
    account BIGINT NOT NULL,
    amount BIGINT NOT NULL,
    PRIMARY KEY (entry, line),
    CHECK (amount <> 0),
    FOREIGN KEY(entry) REFERENCES journal_entry (id),
    FOREIGN KEY(account) REFERENCES account (id)
);

CREATE INDEX ix_posting_account ON posting (account);

CREATE FUNCTION books_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING MESSAGE = TG_TABLE_NAME || ' is append-only', ERRCODE = '23000';
END $$;

CREATE FUNCTION books_take_postings() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM fresh JOIN journal_entry ON journal_entry.id = fresh.entry
               WHERE fresh.line NOT BETWEEN 0 AND journal_entry.lines - 1) THEN
        RAISE EXCEPTION 'the entry did not announce this posting'
            USING ERRCODE = '23000';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER posting_announced AFTER INSERT ON posting
REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION books_take_postings();

CREATE FUNCTION books_entry_is_whole() RETURNS trigger LANGUAGE plpgsql AS $$
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

CREATE CONSTRAINT TRIGGER journal_entry_whole AFTER INSERT ON journal_entry
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION books_entry_is_whole();

CREATE TRIGGER account_no_update BEFORE UPDATE OF id, code, kind, role, owner, epoch, asset ON account FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER account_no_delete BEFORE DELETE OR TRUNCATE ON account FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER journal_entry_no_update BEFORE UPDATE OF id, key, request_hash, kind, epoch, block_number, block_hash, reverses, lines, recorded_ms ON journal_entry FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER journal_entry_no_delete BEFORE DELETE OR TRUNCATE ON journal_entry FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER posting_no_update BEFORE UPDATE OF entry, line, account, amount ON posting FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER posting_no_delete BEFORE DELETE OR TRUNCATE ON posting FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER log_leaf_no_update BEFORE UPDATE OF seq, entry, leaf_hash ON log_leaf FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER log_leaf_no_delete BEFORE DELETE OR TRUNCATE ON log_leaf FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER log_edge_no_update BEFORE UPDATE OF id ON log_edge FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER log_edge_no_delete BEFORE DELETE OR TRUNCATE ON log_edge FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER checkpoint_no_update BEFORE UPDATE OF size, signer, note ON checkpoint FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER checkpoint_no_delete BEFORE DELETE OR TRUNCATE ON checkpoint FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER chain_event_no_update BEFORE UPDATE OF block_hash, log_index, block_number, kind, body ON chain_event FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER chain_event_no_delete BEFORE DELETE OR TRUNCATE ON chain_event FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER round_no_update BEFORE UPDATE OF round, manifest, aggregate, signatures, active ON round FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER round_no_delete BEFORE DELETE OR TRUNCATE ON round FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER contribution_no_update BEFORE UPDATE OF round, node, epoch, tokens, commit_digest, update_digest, update_bytes, loss_micro ON contribution FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER contribution_no_delete BEFORE DELETE OR TRUNCATE ON contribution FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER reveal_no_update BEFORE UPDATE OF round, verifier ON reveal FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER reveal_no_delete BEFORE DELETE OR TRUNCATE ON reveal FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER audit_no_update BEFORE UPDATE OF round, node, drawn_round, offence_id ON audit FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER audit_no_delete BEFORE DELETE OR TRUNCATE ON audit FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER verdict_no_update BEFORE UPDATE OF round, node, verifier, outcome, in_round ON verdict FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER verdict_no_delete BEFORE DELETE OR TRUNCATE ON verdict FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER ruling_no_update BEFORE UPDATE OF round, node, ruling, closed_round ON ruling FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER ruling_no_delete BEFORE DELETE OR TRUNCATE ON ruling FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER settlement_no_update BEFORE UPDATE OF epoch, table_hash, root, tokens_paid, total ON settlement FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER settlement_no_delete BEFORE DELETE OR TRUNCATE ON settlement FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER payout_no_update BEFORE UPDATE OF epoch, row_index, role, peer, account, amount ON payout FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER payout_no_delete BEFORE DELETE OR TRUNCATE ON payout FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER unpaid_no_update BEFORE UPDATE OF round, node, epoch, reason ON unpaid FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER unpaid_no_delete BEFORE DELETE OR TRUNCATE ON unpaid FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER cursor_no_update BEFORE UPDATE OF name ON cursor FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();
