"""For all tests: none depends on speed, and hypothesis' clock is no exception."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("assay", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("assay")
