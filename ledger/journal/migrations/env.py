"""What Alembic runs first: the connection and its transaction are ledger/journal/migrate.py's.

Room: ledger (edge).
"""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
