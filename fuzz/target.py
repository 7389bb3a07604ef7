"""One fuzz target: `python fuzz/target.py TARGET [libFuzzer flags] CORPUS...`.

TARGET is a dialect, one that a file describes, or `detect`. An input is a stream as it stands on
the wire, so that a finding can be given to `wirelake inspect`, and becomes a vector as it is.
`fuzz/run.py` runs them all.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parent.parent))

from fuzz import builds, forge, invariant


def main() -> None:
    """Fuzz the target that the first argument names."""
    target = sys.argv.pop(1)
    described = [builds.DESCRIBED[target]] if target in builds.DESCRIBED else []
    with atheris.instrument_imports(include=["wirelake"]):
        plain = builds.load_plain(*described)
    compiled = builds.load_compiled(*described)
    if compiled is None:
        print("No compiled kernels here: the plain ones are fuzzed alone.", file=sys.stderr)
    if target == "detect":
        dialects = tuple(plain.codec.DIALECTS)
    elif target in plain.codec.DIALECTS:
        dialects = (target,)
    else:
        sys.exit(f"no target {target}; there are detect, {', '.join(plain.codec.DIALECTS)}")

    def check(data: bytes) -> None:
        if target == "detect":
            invariant.check_detection(plain, data)
            return
        outcome = invariant.check(plain, target, data)
        if compiled is not None:
            invariant.compare(outcome, invariant.check(compiled, target, data))

    def flip(data: bytes, most: int) -> bytes:
        return bytes(atheris.Mutate(data, most))  # atheris replaces it when it starts

    mutator = forge.Forge(compiled or plain, dialects, flip)
    atheris.Setup(sys.argv, check, custom_mutator=mutator.mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
    os._exit(0)
