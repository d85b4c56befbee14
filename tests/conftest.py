"""What holds for every test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A slow or busy computer is no fault of the code: no test is judged by its seconds.
settings.register_profile("any computer", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any computer")
