"""Settings of the property tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How long an example takes says more about a shared machine than about the code.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
