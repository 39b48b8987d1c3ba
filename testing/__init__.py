"""Testing: small runs, whole and valid, for tests and for the red team to begin with."""
