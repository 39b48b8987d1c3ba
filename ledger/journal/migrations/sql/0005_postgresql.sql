CREATE TABLE invoice (
    series TEXT NOT NULL,
    number BIGINT NOT NULL,
    first_epoch BIGINT NOT NULL,
    last_epoch BIGINT NOT NULL,
    corrects BIGINT,
    total BIGINT NOT NULL,
    issued_ms BIGINT NOT NULL,
    body TEXT NOT NULL,
    body_hash BYTEA NOT NULL,
    PRIMARY KEY (series, number),
    CHECK (series IN ('invoice', 'credit')),
    CHECK ((series = 'credit') = (corrects IS NOT NULL)),
    CHECK (0 <= first_epoch AND first_epoch <= last_epoch),
    UNIQUE (corrects)
);

CREATE FUNCTION books_invoice_in_order() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.number <> 1 + (SELECT coalesce(max(number), 0) FROM invoice WHERE series = NEW.series) THEN
        RAISE EXCEPTION 'invoice numbers leave no gap' USING ERRCODE = '23000';
    END IF;
    IF NEW.series = 'credit' AND NOT EXISTS (
            SELECT 1 FROM invoice AS held WHERE held.series = 'invoice' AND held.number = NEW.corrects
                AND held.first_epoch = NEW.first_epoch AND held.last_epoch = NEW.last_epoch
                AND held.total = -NEW.total) THEN
        RAISE EXCEPTION 'a credit note takes back a whole invoice' USING ERRCODE = '23000';
    END IF;
    IF NEW.series = 'invoice' AND EXISTS (
            SELECT 1 FROM invoice AS held WHERE held.series = 'invoice'
                AND held.first_epoch <= NEW.last_epoch AND held.last_epoch >= NEW.first_epoch
                AND NOT EXISTS (SELECT 1 FROM invoice AS undone WHERE undone.corrects = held.number)) THEN
        RAISE EXCEPTION 'an epoch is invoiced once' USING ERRCODE = '23000';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER invoice_in_order BEFORE INSERT ON invoice
FOR EACH ROW EXECUTE FUNCTION books_invoice_in_order();

CREATE TRIGGER invoice_no_update BEFORE UPDATE OF series, number, first_epoch, last_epoch, corrects, total, issued_ms, body, body_hash ON invoice FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();

CREATE TRIGGER invoice_no_delete BEFORE DELETE OR TRUNCATE ON invoice FOR EACH STATEMENT EXECUTE FUNCTION books_refuse();
