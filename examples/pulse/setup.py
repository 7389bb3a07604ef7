"""Compiles the codec against the .pxd files that Wirelake ships."""

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

import wirelake

#: The folder that has `wirelake/wire/codec.pxd`.
INCLUDE = str(Path(wirelake.__file__).parent.parent)

if __name__ == "__main__":
    setup(
        ext_modules=cythonize(
            [Extension("wirelake_pulse.codec", ["src/wirelake_pulse/codec.pyx"])],
            include_path=[INCLUDE],
            compiler_directives={"language_level": 3, "boundscheck": False, "wraparound": False},
            quiet=True,
        )
    )
