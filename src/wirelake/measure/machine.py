"""The machine that figures were measured on."""

from __future__ import annotations

import datetime
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

from wirelake import __version__
from wirelake.errors import EngineError
from wirelake.wire import COMPILED

FSYNC_SECONDS = 0.5


def describe(folder: Path) -> dict[str, Any]:
    """Processor, versions, and how fast the disk of a folder syncs; EngineError if it cannot."""
    model = platform.processor() or platform.machine()
    with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123 - no file of ours
        for line in lines:
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "wirelake": __version__,
        "kernels": "compiled" if COMPILED else "plain",
        "fsyncs_a_second": fsync_rate(folder),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def fsync_rate(folder: Path) -> float:
    """How often a second 4 KiB can be appended to a file there and synced."""
    block = bytes(4096)
    count = 0
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            start = time.monotonic()
            while (took := time.monotonic() - start) < FSYNC_SECONDS:
                os.write(file.fileno(), block)
                os.fdatasync(file.fileno())
                count += 1
    except OSError as error:
        raise EngineError(f"{folder}: {(error.strerror or str(error)).lower()}") from None
    return count / took
