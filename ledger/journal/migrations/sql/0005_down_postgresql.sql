DROP TABLE invoice;

DROP FUNCTION books_invoice_in_order;
