"""Seeds and mutations of them through sanitized kernels: `python fuzz/native/short.py COUNT`.

For the test suite: needs neither clang nor libFuzzer, and knows nothing of coverage. Every target
gets COUNT mutations, always the same ones. The process must have been started with
`build.environment`; a report of a sanitizer ends it. The input that is being run is in the file
that LAST_INPUT names.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from fuzz.native.exercise import exact, exercise, targets
from fuzz.native.seeds import seeds_of
from fuzz.native.target import load, mutator

MOST = 4096
_LENGTHS = (0, 1, 2, 599, 600, 601, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
_BYTES = b"\0\1\x7f\x80\xff\r\n|\x5f\xbf\x9f\x1b\x3b"


class Flips:
    """Random changes of bytes, instead of libFuzzer's."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance

    def __call__(self, data: bytes, most: int) -> bytes:
        """The data with a few changes, at most so long."""
        chance, changed = self.chance, bytearray(data)
        for _ in range(chance.randint(1, 5)):
            at, size = chance.randint(0, len(changed)), chance.randint(1, 12)
            way = chance.randrange(6)
            if way == 0:
                changed[at : at + 1] = bytes([chance.choice(_BYTES)])
            elif way == 1:
                changed[at:at] = chance.randbytes(size)
            elif way == 2:
                del changed[at : at + size]
            elif way == 3:
                changed[at : at + 4] = chance.choice(_LENGTHS).to_bytes(4, "big")
            elif way == 4:
                changed[at:at] = changed[at : at + 5 * size]
            elif changed:
                changed[at % len(changed)] ^= 1 << chance.randrange(8)
        if chance.random() < 0.2:
            del changed[chance.randint(0, len(changed)) :]
        return bytes(changed[:most])


def main() -> None:
    """Run every target; print how much each was given."""
    count, last = int(sys.argv[1]), Path(os.environ["LAST_INPUT"])
    kernels = load()
    done: dict[str, dict[str, int]] = {}
    for target in targets(kernels.codec):
        chance = Random(target)
        run, flip = exercise(kernels, target), Flips(chance)
        mutate = mutator(kernels, target, flip)
        seeds = list(seeds_of(kernels.build, target))
        given = read = 0
        for number in range(len(seeds) + count):
            if number < len(seeds):
                data = seeds[number]
            else:
                data = mutate(chance.choice(seeds), MOST, chance.randrange(1 << 31))
                if chance.random() < 0.2:
                    data = (chance.choice(seeds) + data)[:MOST]
            last.write_bytes(data)
            read += run(exact(data))
            given += len(data)
        done[target] = {"inputs": len(seeds) + count, "given": given, "read": read}
    print(json.dumps(done))


if __name__ == "__main__":
    main()
