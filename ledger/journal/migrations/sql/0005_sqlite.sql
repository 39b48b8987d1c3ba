CREATE TABLE invoice (
    series TEXT NOT NULL,
    number INTEGER NOT NULL,
    first_epoch INTEGER NOT NULL,
    last_epoch INTEGER NOT NULL,
    corrects INTEGER,
    total INTEGER NOT NULL,
    issued_ms INTEGER NOT NULL,
    body TEXT NOT NULL,
    body_hash BLOB NOT NULL,
    PRIMARY KEY (series, number),
    CHECK (series IN ('invoice', 'credit')),
    CHECK ((series = 'credit') = (corrects IS NOT NULL)),
    CHECK (0 <= first_epoch AND first_epoch <= last_epoch),
    UNIQUE (corrects)
)
 STRICT;

CREATE TRIGGER invoice_in_order BEFORE INSERT ON invoice
BEGIN
    SELECT RAISE(ABORT, 'invoice numbers leave no gap') WHERE NEW.number <> 1 + (SELECT coalesce(max(number), 0) FROM invoice WHERE series = NEW.series);
    SELECT RAISE(ABORT, 'a credit note takes back a whole invoice') WHERE NEW.series = 'credit' AND NOT EXISTS (
            SELECT 1 FROM invoice AS held WHERE held.series = 'invoice' AND held.number = NEW.corrects
                AND held.first_epoch = NEW.first_epoch AND held.last_epoch = NEW.last_epoch
                AND held.total = -NEW.total);
    SELECT RAISE(ABORT, 'an epoch is invoiced once') WHERE NEW.series = 'invoice' AND EXISTS (
            SELECT 1 FROM invoice AS held WHERE held.series = 'invoice'
                AND held.first_epoch <= NEW.last_epoch AND held.last_epoch >= NEW.first_epoch
                AND NOT EXISTS (SELECT 1 FROM invoice AS undone WHERE undone.corrects = held.number));
END;

CREATE TRIGGER invoice_no_update BEFORE UPDATE OF series, number, first_epoch, last_epoch, corrects, total, issued_ms, body, body_hash ON invoice BEGIN SELECT RAISE(ABORT, 'invoice is append-only'); END;

CREATE TRIGGER invoice_no_delete BEFORE DELETE ON invoice BEGIN SELECT RAISE(ABORT, 'invoice is append-only'); END;

CREATE TRIGGER invoice_no_replace_0 BEFORE INSERT ON invoice WHEN EXISTS (SELECT 1 FROM invoice WHERE series = NEW.series AND number = NEW.number) BEGIN SELECT RAISE(ABORT, 'invoice is append-only'); END;

CREATE TRIGGER invoice_no_replace_1 BEFORE INSERT ON invoice WHEN EXISTS (SELECT 1 FROM invoice WHERE corrects = NEW.corrects) BEGIN SELECT RAISE(ABORT, 'invoice is append-only'); END;

PRAGMA user_version = 5;
