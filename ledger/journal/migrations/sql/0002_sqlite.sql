CREATE TABLE account (
    id INTEGER NOT NULL,
    code TEXT NOT NULL,
    kind TEXT NOT NULL,
    role TEXT NOT NULL,
    owner TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    asset TEXT NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (code)
)
 STRICT;

CREATE INDEX ix_account_owner ON account (owner);

CREATE TABLE audit (
    round INTEGER NOT NULL,
    node BLOB NOT NULL,
    drawn_round INTEGER NOT NULL,
    offence_id BLOB NOT NULL,
    PRIMARY KEY (round, node)
)
 STRICT;

CREATE TABLE chain_event (
    block_hash BLOB NOT NULL,
    log_index INTEGER NOT NULL,
    block_number INTEGER NOT NULL,
    kind TEXT NOT NULL,
    body TEXT NOT NULL,
    state TEXT NOT NULL,
    turns INTEGER NOT NULL,
    PRIMARY KEY (block_hash, log_index),
    CHECK (state IN ('seen', 'orphaned'))
)
 STRICT;

CREATE INDEX ix_chain_event_block_number ON chain_event (block_number);

CREATE INDEX ix_chain_event_kind ON chain_event (kind);

CREATE TABLE checkpoint (
    size INTEGER NOT NULL,
    signer BLOB NOT NULL,
    note TEXT NOT NULL,
    PRIMARY KEY (size)
)
 STRICT;

CREATE TABLE contribution (
    round INTEGER NOT NULL,
    node BLOB NOT NULL,
    epoch INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    commit_digest BLOB NOT NULL,
    update_digest BLOB NOT NULL,
    update_bytes INTEGER NOT NULL,
    loss_micro INTEGER NOT NULL,
    PRIMARY KEY (round, node)
)
 STRICT;

CREATE INDEX ix_contribution_epoch ON contribution (epoch);

CREATE TABLE cursor (
    name TEXT NOT NULL,
    value INTEGER NOT NULL,
    PRIMARY KEY (name)
)
 STRICT;

CREATE TABLE journal_entry (
    id INTEGER NOT NULL,
    "key" TEXT NOT NULL,
    request_hash BLOB NOT NULL,
    kind TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    block_number INTEGER NOT NULL,
    block_hash BLOB NOT NULL,
    reverses INTEGER,
    lines INTEGER NOT NULL,
    recorded_ms INTEGER NOT NULL,
    PRIMARY KEY (id),
    UNIQUE ("key"),
    UNIQUE (reverses),
    FOREIGN KEY(reverses) REFERENCES journal_entry (id)
)
 STRICT;

CREATE INDEX ix_journal_entry_kind ON journal_entry (kind);

CREATE TABLE log_edge (
    id INTEGER NOT NULL,
    size INTEGER NOT NULL,
    roots BLOB NOT NULL,
    PRIMARY KEY (id),
    CHECK (id = 0)
)
 STRICT;

CREATE TABLE payout (
    epoch INTEGER NOT NULL,
    row_index INTEGER NOT NULL,
    role TEXT NOT NULL,
    peer BLOB NOT NULL,
    account TEXT NOT NULL,
    amount INTEGER NOT NULL,
    PRIMARY KEY (epoch, row_index),
    CHECK (amount > 0)
)
 STRICT;

CREATE TABLE reveal (
    round INTEGER NOT NULL,
    verifier BLOB NOT NULL,
    PRIMARY KEY (round, verifier)
)
 STRICT;

CREATE TABLE round (
    round INTEGER NOT NULL,
    manifest BLOB NOT NULL,
    aggregate BLOB NOT NULL,
    signatures INTEGER NOT NULL,
    active INTEGER NOT NULL,
    PRIMARY KEY (round)
)
 STRICT;

CREATE TABLE ruling (
    round INTEGER NOT NULL,
    node BLOB NOT NULL,
    ruling TEXT NOT NULL,
    closed_round INTEGER NOT NULL,
    PRIMARY KEY (round, node)
)
 STRICT;

CREATE TABLE settlement (
    epoch INTEGER NOT NULL,
    table_hash BLOB NOT NULL,
    root BLOB NOT NULL,
    tokens_paid INTEGER NOT NULL,
    total INTEGER NOT NULL,
    PRIMARY KEY (epoch)
)
 STRICT;

CREATE TABLE unpaid (
    round INTEGER NOT NULL,
    node BLOB NOT NULL,
    epoch INTEGER NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (round, node)
)
 STRICT;

CREATE TABLE verdict (
    round INTEGER NOT NULL,
    node BLOB NOT NULL,
    verifier BLOB NOT NULL,
    outcome TEXT NOT NULL,
    in_round INTEGER NOT NULL,
    PRIMARY KEY (round, node, verifier)
)
 STRICT;

CREATE TABLE log_leaf (
    seq INTEGER NOT NULL,
    entry INTEGER NOT NULL,
    leaf_hash BLOB NOT NULL,
    PRIMARY KEY (seq),
    UNIQUE (entry),
    FOREIGN KEY(entry) REFERENCES journal_entry (id)
)
 STRICT;

CREATE TABLE posting (
    entry INTEGER NOT NULL,
    line INTEGER NOT NULL,
    account INTEGER NOT NULL,
    amount INTEGER NOT NULL,
    PRIMARY KEY (entry, line),
    CHECK (amount <> 0),
    FOREIGN KEY(entry) REFERENCES journal_entry (id),
    FOREIGN KEY(account) REFERENCES account (id)
)
 STRICT;

CREATE INDEX ix_posting_account ON posting (account);

CREATE TRIGGER posting_announced BEFORE INSERT ON posting
WHEN NEW.line NOT BETWEEN 0 AND (SELECT lines - 1 FROM journal_entry WHERE id = NEW.entry)
BEGIN SELECT RAISE(ABORT, 'the entry did not announce this posting'); END;

CREATE TRIGGER posting_balanced AFTER INSERT ON posting
WHEN NEW.line = (SELECT lines - 1 FROM journal_entry WHERE id = NEW.entry)
BEGIN
    SELECT RAISE(ABORT, 'the entry does not sum to zero') WHERE EXISTS (
        SELECT 1 FROM posting JOIN account ON account.id = posting.account
        WHERE posting.entry = NEW.entry GROUP BY account.asset HAVING sum(posting.amount) <> 0);
    SELECT RAISE(ABORT, 'lines of the entry are missing') WHERE NEW.line + 1 <>
        (SELECT count(*) FROM posting WHERE entry = NEW.entry);
END;

CREATE TRIGGER account_no_update BEFORE UPDATE OF id, code, kind, role, owner, epoch, asset ON account BEGIN SELECT RAISE(ABORT, 'account is append-only'); END;

CREATE TRIGGER account_no_delete BEFORE DELETE ON account BEGIN SELECT RAISE(ABORT, 'account is append-only'); END;

CREATE TRIGGER account_no_replace_0 BEFORE INSERT ON account WHEN EXISTS (SELECT 1 FROM account WHERE id = NEW.id) BEGIN SELECT RAISE(ABORT, 'account is append-only'); END;

CREATE TRIGGER account_no_replace_1 BEFORE INSERT ON account WHEN EXISTS (SELECT 1 FROM account WHERE code = NEW.code) BEGIN SELECT RAISE(ABORT, 'account is append-only'); END;

CREATE TRIGGER journal_entry_no_update BEFORE UPDATE OF id, key, request_hash, kind, epoch, block_number, block_hash, reverses, lines, recorded_ms ON journal_entry BEGIN SELECT RAISE(ABORT, 'journal_entry is append-only'); END;

CREATE TRIGGER journal_entry_no_delete BEFORE DELETE ON journal_entry BEGIN SELECT RAISE(ABORT, 'journal_entry is append-only'); END;

CREATE TRIGGER journal_entry_no_replace_0 BEFORE INSERT ON journal_entry WHEN EXISTS (SELECT 1 FROM journal_entry WHERE id = NEW.id) BEGIN SELECT RAISE(ABORT, 'journal_entry is append-only'); END;

CREATE TRIGGER journal_entry_no_replace_1 BEFORE INSERT ON journal_entry WHEN EXISTS (SELECT 1 FROM journal_entry WHERE key = NEW.key) BEGIN SELECT RAISE(ABORT, 'journal_entry is append-only'); END;

CREATE TRIGGER journal_entry_no_replace_2 BEFORE INSERT ON journal_entry WHEN EXISTS (SELECT 1 FROM journal_entry WHERE reverses = NEW.reverses) BEGIN SELECT RAISE(ABORT, 'journal_entry is append-only'); END;

CREATE TRIGGER posting_no_update BEFORE UPDATE OF entry, line, account, amount ON posting BEGIN SELECT RAISE(ABORT, 'posting is append-only'); END;

CREATE TRIGGER posting_no_delete BEFORE DELETE ON posting BEGIN SELECT RAISE(ABORT, 'posting is append-only'); END;

CREATE TRIGGER posting_no_replace_0 BEFORE INSERT ON posting WHEN EXISTS (SELECT 1 FROM posting WHERE entry = NEW.entry AND line = NEW.line) BEGIN SELECT RAISE(ABORT, 'posting is append-only'); END;

CREATE TRIGGER log_leaf_no_update BEFORE UPDATE OF seq, entry, leaf_hash ON log_leaf BEGIN SELECT RAISE(ABORT, 'log_leaf is append-only'); END;

CREATE TRIGGER log_leaf_no_delete BEFORE DELETE ON log_leaf BEGIN SELECT RAISE(ABORT, 'log_leaf is append-only'); END;

CREATE TRIGGER log_leaf_no_replace_0 BEFORE INSERT ON log_leaf WHEN EXISTS (SELECT 1 FROM log_leaf WHERE seq = NEW.seq) BEGIN SELECT RAISE(ABORT, 'log_leaf is append-only'); END;

CREATE TRIGGER log_leaf_no_replace_1 BEFORE INSERT ON log_leaf WHEN EXISTS (SELECT 1 FROM log_leaf WHERE entry = NEW.entry) BEGIN SELECT RAISE(ABORT, 'log_leaf is append-only'); END;

CREATE TRIGGER log_edge_no_update BEFORE UPDATE OF id ON log_edge BEGIN SELECT RAISE(ABORT, 'log_edge is append-only'); END;

CREATE TRIGGER log_edge_no_delete BEFORE DELETE ON log_edge BEGIN SELECT RAISE(ABORT, 'log_edge is append-only'); END;

CREATE TRIGGER log_edge_no_replace_0 BEFORE INSERT ON log_edge WHEN EXISTS (SELECT 1 FROM log_edge WHERE id = NEW.id) BEGIN SELECT RAISE(ABORT, 'log_edge is append-only'); END;

CREATE TRIGGER checkpoint_no_update BEFORE UPDATE OF size, signer, note ON checkpoint BEGIN SELECT RAISE(ABORT, 'checkpoint is append-only'); END;

CREATE TRIGGER checkpoint_no_delete BEFORE DELETE ON checkpoint BEGIN SELECT RAISE(ABORT, 'checkpoint is append-only'); END;

CREATE TRIGGER checkpoint_no_replace_0 BEFORE INSERT ON checkpoint WHEN EXISTS (SELECT 1 FROM checkpoint WHERE size = NEW.size) BEGIN SELECT RAISE(ABORT, 'checkpoint is append-only'); END;

CREATE TRIGGER chain_event_no_update BEFORE UPDATE OF block_hash, log_index, block_number, kind, body ON chain_event BEGIN SELECT RAISE(ABORT, 'chain_event is append-only'); END;

CREATE TRIGGER chain_event_no_delete BEFORE DELETE ON chain_event BEGIN SELECT RAISE(ABORT, 'chain_event is append-only'); END;

CREATE TRIGGER chain_event_no_replace_0 BEFORE INSERT ON chain_event WHEN EXISTS (SELECT 1 FROM chain_event WHERE block_hash = NEW.block_hash AND log_index = NEW.log_index) BEGIN SELECT RAISE(ABORT, 'chain_event is append-only'); END;

CREATE TRIGGER round_no_update BEFORE UPDATE OF round, manifest, aggregate, signatures, active ON round BEGIN SELECT RAISE(ABORT, 'round is append-only'); END;

CREATE TRIGGER round_no_delete BEFORE DELETE ON round BEGIN SELECT RAISE(ABORT, 'round is append-only'); END;

CREATE TRIGGER round_no_replace_0 BEFORE INSERT ON round WHEN EXISTS (SELECT 1 FROM round WHERE round = NEW.round) BEGIN SELECT RAISE(ABORT, 'round is append-only'); END;

CREATE TRIGGER contribution_no_update BEFORE UPDATE OF round, node, epoch, tokens, commit_digest, update_digest, update_bytes, loss_micro ON contribution BEGIN SELECT RAISE(ABORT, 'contribution is append-only'); END;

CREATE TRIGGER contribution_no_delete BEFORE DELETE ON contribution BEGIN SELECT RAISE(ABORT, 'contribution is append-only'); END;

CREATE TRIGGER contribution_no_replace_0 BEFORE INSERT ON contribution WHEN EXISTS (SELECT 1 FROM contribution WHERE round = NEW.round AND node = NEW.node) BEGIN SELECT RAISE(ABORT, 'contribution is append-only'); END;

CREATE TRIGGER reveal_no_update BEFORE UPDATE OF round, verifier ON reveal BEGIN SELECT RAISE(ABORT, 'reveal is append-only'); END;

CREATE TRIGGER reveal_no_delete BEFORE DELETE ON reveal BEGIN SELECT RAISE(ABORT, 'reveal is append-only'); END;

CREATE TRIGGER reveal_no_replace_0 BEFORE INSERT ON reveal WHEN EXISTS (SELECT 1 FROM reveal WHERE round = NEW.round AND verifier = NEW.verifier) BEGIN SELECT RAISE(ABORT, 'reveal is append-only'); END;

CREATE TRIGGER audit_no_update BEFORE UPDATE OF round, node, drawn_round, offence_id ON audit BEGIN SELECT RAISE(ABORT, 'audit is append-only'); END;

CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit BEGIN SELECT RAISE(ABORT, 'audit is append-only'); END;

CREATE TRIGGER audit_no_replace_0 BEFORE INSERT ON audit WHEN EXISTS (SELECT 1 FROM audit WHERE round = NEW.round AND node = NEW.node) BEGIN SELECT RAISE(ABORT, 'audit is append-only'); END;

CREATE TRIGGER verdict_no_update BEFORE UPDATE OF round, node, verifier, outcome, in_round ON verdict BEGIN SELECT RAISE(ABORT, 'verdict is append-only'); END;

CREATE TRIGGER verdict_no_delete BEFORE DELETE ON verdict BEGIN SELECT RAISE(ABORT, 'verdict is append-only'); END;

CREATE TRIGGER verdict_no_replace_0 BEFORE INSERT ON verdict WHEN EXISTS (SELECT 1 FROM verdict WHERE round = NEW.round AND node = NEW.node AND verifier = NEW.verifier) BEGIN SELECT RAISE(ABORT, 'verdict is append-only'); END;

CREATE TRIGGER ruling_no_update BEFORE UPDATE OF round, node, ruling, closed_round ON ruling BEGIN SELECT RAISE(ABORT, 'ruling is append-only'); END;

CREATE TRIGGER ruling_no_delete BEFORE DELETE ON ruling BEGIN SELECT RAISE(ABORT, 'ruling is append-only'); END;

CREATE TRIGGER ruling_no_replace_0 BEFORE INSERT ON ruling WHEN EXISTS (SELECT 1 FROM ruling WHERE round = NEW.round AND node = NEW.node) BEGIN SELECT RAISE(ABORT, 'ruling is append-only'); END;

CREATE TRIGGER settlement_no_update BEFORE UPDATE OF epoch, table_hash, root, tokens_paid, total ON settlement BEGIN SELECT RAISE(ABORT, 'settlement is append-only'); END;

CREATE TRIGGER settlement_no_delete BEFORE DELETE ON settlement BEGIN SELECT RAISE(ABORT, 'settlement is append-only'); END;

CREATE TRIGGER settlement_no_replace_0 BEFORE INSERT ON settlement WHEN EXISTS (SELECT 1 FROM settlement WHERE epoch = NEW.epoch) BEGIN SELECT RAISE(ABORT, 'settlement is append-only'); END;

CREATE TRIGGER payout_no_update BEFORE UPDATE OF epoch, row_index, role, peer, account, amount ON payout BEGIN SELECT RAISE(ABORT, 'payout is append-only'); END;

CREATE TRIGGER payout_no_delete BEFORE DELETE ON payout BEGIN SELECT RAISE(ABORT, 'payout is append-only'); END;

CREATE TRIGGER payout_no_replace_0 BEFORE INSERT ON payout WHEN EXISTS (SELECT 1 FROM payout WHERE epoch = NEW.epoch AND row_index = NEW.row_index) BEGIN SELECT RAISE(ABORT, 'payout is append-only'); END;

CREATE TRIGGER unpaid_no_update BEFORE UPDATE OF round, node, epoch, reason ON unpaid BEGIN SELECT RAISE(ABORT, 'unpaid is append-only'); END;

CREATE TRIGGER unpaid_no_delete BEFORE DELETE ON unpaid BEGIN SELECT RAISE(ABORT, 'unpaid is append-only'); END;

CREATE TRIGGER unpaid_no_replace_0 BEFORE INSERT ON unpaid WHEN EXISTS (SELECT 1 FROM unpaid WHERE round = NEW.round AND node = NEW.node) BEGIN SELECT RAISE(ABORT, 'unpaid is append-only'); END;

CREATE TRIGGER cursor_no_update BEFORE UPDATE OF name ON cursor BEGIN SELECT RAISE(ABORT, 'cursor is append-only'); END;

PRAGMA user_version = 2;
