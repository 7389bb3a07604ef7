"""Hypothesis for the wire tests: the same examples every time, fewer of them on plain kernels.

`HYPOTHESIS_PROFILE=thorough` looks for new ones.
"""

import os

from hypothesis import HealthCheck, settings

from wirelake.wire import COMPILED

settings.register_profile(
    "ci",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=60 if COMPILED else 40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "thorough", parent=settings.get_profile("ci"), derandomize=False, max_examples=3000
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
