"""Lets Spark find the format `wirelake` by itself.

Spark imports every package whose name begins with `pyspark_` when a session first looks for a
Python data source, and registers its `DefaultSource`. One package that cannot be imported hides all
others, so here that is a warning, and the format is not there.
"""

from __future__ import annotations

import warnings

try:
    from wirelake.spark.source import Wirelake as DefaultSource
except ImportError as error:
    warnings.warn(f"the format wirelake needs PySpark 4.2 or newer: {error}", stacklevel=2)

__all__ = ["DefaultSource"]
