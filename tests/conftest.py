"""Settings of the whole test run."""

import os

from hypothesis import HealthCheck, settings

# In CI the examples are the same every time; elsewhere each run looks at new ones.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci" if os.environ.get("CI") else "local")
