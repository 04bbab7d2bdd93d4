"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# A busy machine makes single examples slow; that says nothing about the code, and no test here times anything.
settings.register_profile("fallow", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fallow")
