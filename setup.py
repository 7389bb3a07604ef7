"""Compiles the kernels; everything else about the package is in pyproject.toml.

A kernel is a plain Python module, with or without a .pxd beside it, that also runs uncompiled.
WIRELAKE_BUILD=require fails where it cannot be compiled, WIRELAKE_BUILD=skip does not try.
Unset, the kernels are compiled if that is possible and stay plain otherwise. WIRELAKE_CFLAGS
replaces the optimisation level and adds compiler flags, as for a build with sanitizers.

The console's libraries are brought in by npm, too (`wirelake/console/vendor.py`). Where that is
impossible a warning says so, and the package has no console; WIRELAKE_CONSOLE=require makes it an
error. WIRELAKE_BUILD=skip does not try.
"""

import importlib.util
import os
import shlex
import subprocess
import sys
import sysconfig

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

KERNELS = [
    "wirelake.wire.octets",
    "wirelake.wire.names",
    "wirelake.wire.parameters",
    "wirelake.wire.table",
    "wirelake.wire.rows",
    "wirelake.wire.codec",
    "wirelake.wire.cbor",
    "wirelake.wire.document_columns",
    "wirelake.dialects.mfp.codec",
    "wirelake.dialects.boson_text.codec",
    "wirelake.dialects.boson_binary.codec",
    "wirelake.dialects.kobold.scanner",
    "wirelake.dialects.kobold.encoder",
    "wirelake.dialects.tmq.codec",
    "wirelake.dialects.framed.layout_codec",
    "wirelake.dialects.framed.codec",
    "wirelake.dialects.mqtt.scanner",
    "wirelake.dialects.mqtt.encoder",
    "wirelake.wire.arrow",
    "wirelake.broker.route",
    "wirelake.broker.subscriptions",
    "wirelake.journal.arrow_stream",
    "wirelake.journal.batch",
]

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "warn.unreachable": False,  # one branch of `if cython.compiled` always is
}


def obstacle() -> str | None:
    """Why kernels cannot be compiled here, if so."""
    if importlib.util.find_spec("Cython") is None:
        return "Cython is not installed"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    include = sysconfig.get_path("include")
    probe = [*compiler, "-fsyntax-only", f"-I{include}", "-xc", "-"]
    try:
        subprocess.run(probe, input=b"#include <Python.h>", capture_output=True, check=True)
    except OSError:
        return f"there is no C compiler ({compiler[0]})"
    except subprocess.CalledProcessError:
        return f"{compiler[0]} finds no usable Python.h in {include}"
    return None


def kernels() -> list[Extension]:
    """The extension modules to build, none for a plain build."""
    wish = os.environ.get("WIRELAKE_BUILD", "")
    if wish not in ("", "require", "skip"):
        sys.exit(f"WIRELAKE_BUILD is {wish!r}; it may be 'require' or 'skip'")
    if wish == "skip":
        return []
    if reason := obstacle():
        if wish == "require":
            sys.exit(f"wirelake: the kernels cannot be compiled: {reason}")
        print(f"wirelake: warning: the kernels stay plain Python: {reason}", file=sys.stderr)
        return []

    from Cython.Build import cythonize  # optional, and found to be there

    flags = shlex.split(os.environ.get("WIRELAKE_CFLAGS", "-O3"))
    extensions = [
        Extension(name, [f"src/{name.replace('.', '/')}.py"], extra_compile_args=flags)
        for name in KERNELS
    ]
    return cythonize(
        extensions,
        build_dir="build/cython",
        include_path=["src"],
        compiler_directives=DIRECTIVES,
        quiet=True,
        nthreads=os.cpu_count() or 1,
    )


class BuildWithConsole(build_py):
    """Builds the package with the console's libraries in it, where npm can be had."""

    def run(self) -> None:
        """Bring the libraries, then build."""
        if os.environ.get("WIRELAKE_BUILD", "") != "skip" and (reason := vendor_console()):
            text = f"the package has no console: {reason}"
            if os.environ.get("WIRELAKE_CONSOLE") == "require":
                sys.exit(f"wirelake: {text}")
            print(f"wirelake: warning: {text}", file=sys.stderr)
        super().run()


def vendor_console() -> str:
    """Bring the console's libraries into the source tree; what stands in the way, if anything."""
    path = "src/wirelake/console/vendor.py"
    spec = importlib.util.spec_from_file_location("vendor", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.vendor()


if __name__ == "__main__":
    setup(
        cmdclass={"build_py": BuildWithConsole},
        ext_modules=kernels(),
        options={"build_ext": {"parallel": os.cpu_count()}},
    )
