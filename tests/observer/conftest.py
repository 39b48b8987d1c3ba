"""The local chain of the contract tests, for what the keeper does on it."""

from tests.contracts.conftest import anvil, anvil_binary, first_day, world

__all__ = ["anvil", "anvil_binary", "first_day", "world"]
