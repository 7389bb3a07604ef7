"""One native fuzz target: `python fuzz/native/target.py TARGET BYTES [libFuzzer flags] CORPUS...`.

The process must have been started with `build.environment`. It ends when BYTES bytes were read.
With BYTES 0 and files instead of a corpus, the files are run once each.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from fuzz import builds, forge
from fuzz.native.exercise import OF_TABLES, Exercise, Kernels, NativeBuild, exercise


def load() -> Kernels:
    """The sanitized kernels."""
    loaded = builds.load_compiled()
    if loaded is None or "native" not in Path(loaded.arrow.__file__ or "").parts:
        sys.exit("the sanitized kernels are not there: run this by fuzz/native/run.py")
    return Kernels(NativeBuild(**vars(loaded)))


def mutator(kernels: Kernels, target: str, flip: Any) -> Any:
    """The mutations that know a dialect, for what follows the byte that may choose one."""
    dialects = list(kernels.codec.DIALECTS)
    if target in dialects or target == "detect":
        names = (target,) if target in dialects else dialects
        return forge.Forge(kernels.build, names, flip).mutate
    if target not in OF_TABLES:
        return lambda data, most, _seed: flip(data, most)
    forges = [forge.Forge(kernels.build, (name,), flip) for name in dialects]

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        first = Random(seed).randrange(len(forges)) if not data else data[0] % len(forges)
        return bytes([first]) + forges[first].mutate(data[1:], most - 1, seed)

    return mutate


def main() -> None:
    """Fuzz the target that the first argument names."""
    target, limit, *arguments = sys.argv[1:]
    # The kernels' branch counters register with the driver when they are loaded.
    flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)
    driver: Any = importlib.import_module("driver")
    sys.setdlopenflags(flags)
    kernels = load()
    run: Exercise = exercise(kernels, target)
    mutate = mutator(kernels, target, driver.flip)
    sys.exit(driver.run([target, *arguments], run, mutate, int(limit) or 1 << 62))


if __name__ == "__main__":
    main()
