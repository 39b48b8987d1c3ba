"""Migrations: every schema the books have had, and the way between two; see ledger/journal/migrate.py.

Room: ledger. A revision is one file of statements for each database, as they were
when it was made: `sql/NUMBER_DATABASE.sql`, a blank line after each. What a new
schema keeps besides (sums, hashes) is filled from the journal on the way.
"""
