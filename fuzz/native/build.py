"""Kernels compiled with sanitizers, in a folder of their own beside plain copies of the rest.

Every memory error and every undefined operation ends the process with a report. A process that
loads such a kernel needs the sanitizer's runtime loaded before Python itself, and an allocator that
gives each buffer its exact size: `environment` sees to both.

gcc's sanitizers are enough to run inputs. clang's also count branches, for libFuzzer.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "build" / "native"

_SANITIZERS = "-fsanitize=address,undefined"
_FLAGS = (
    *("-g1", "-w", "-fno-omit-frame-pointer", _SANITIZERS, "-fno-sanitize-recover=all"),
    "-fno-wrapv",  # Python's own flags define signed overflow, and so would hide it
)
_ADDRESS_OPTIONS = (
    "halt_on_error=1",
    "exitcode=99",
    "detect_leaks=0",  # Python keeps much to its end
    "verify_asan_link_order=0",  # libFuzzer's driver is loaded before the runtime
    "detect_stack_use_after_return=0",
    "quarantine_size_mb=32",
)
_CLANGS = ("clang", *(f"clang-{version}" for version in range(22, 13, -1)))


class BuildError(Exception):
    """The kernels cannot be compiled so; the text says why."""


@dataclass(frozen=True)
class Toolchain:
    """A compiler, what it is told, and the runtimes that its output needs."""

    name: str
    compiler: str
    compile: tuple[str, ...]
    link: tuple[str, ...]
    runtimes: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Where what it builds is kept."""
        return FOLDER / self.name


def gcc() -> Toolchain:
    """Sanitizers alone; compiled without optimisation, which takes half a minute of CPU."""
    if shutil.which("gcc") is None:
        raise BuildError("gcc is not installed")
    runtimes = tuple(_runtime("gcc", f"lib{name}.so") for name in ("asan", "ubsan"))
    return Toolchain("gcc", "gcc", ("-O0", *_FLAGS), (_SANITIZERS,), runtimes)


def clang() -> Toolchain:
    """Sanitizers, and branches that are counted for libFuzzer."""
    compiler = next(filter(shutil.which, _CLANGS), None)
    if compiler is None:
        raise BuildError("clang is not installed (Debian: apt install clang-16 libclang-rt-16-dev)")
    runtime = _runtime(compiler, f"libclang_rt.asan-{os.uname().machine}.so")
    counted = "-fsanitize-coverage=inline-8bit-counters,pc-table"
    flags = ("-O2", *_FLAGS, counted, "-shared-libasan")
    return Toolchain("clang", compiler, flags, (_SANITIZERS, "-shared-libasan"), (runtime,))


def _runtime(compiler: str, name: str) -> str:
    """The path of one of a compiler's libraries."""
    asked = [compiler, f"-print-file-name={name}"]
    path = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(path).is_absolute():
        raise BuildError(f"{compiler} comes without {name}")
    return str(Path(path).resolve())


def build_kernels(tools: Toolchain) -> Path:
    """Compile every kernel that changed; return the folder to put first in PYTHONPATH."""
    tools.folder.mkdir(parents=True, exist_ok=True)
    library = tools.folder / "lib"
    link = " ".join(tools.link)
    with (tools.folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        flags = tools.folder / "flags"
        if not flags.exists() or flags.read_text() != repr(tools):
            for old in (library, tools.folder / "temp"):
                shutil.rmtree(old, ignore_errors=True)
            flags.write_text(repr(tools))
        _run(
            [
                *(sys.executable, "setup.py", "--quiet", "build"),
                *(f"--build-lib={library}", f"--build-temp={tools.folder / 'temp'}"),
            ],
            WIRELAKE_BUILD="require",
            WIRELAKE_CFLAGS=" ".join(tools.compile),
            CC=tools.compiler,
            LDSHARED=f"{tools.compiler} -shared {link}",
        )
    return library


def build_driver(tools: Toolchain, folder: Path) -> Path:
    """Compile libFuzzer as a module of Python; return its library, to be loaded before all others.

    Its counters would else be taken for those of the sanitizer's runtime, which count nothing.
    """
    source = ROOT / "fuzz" / "native" / "driver.c"
    archive = _runtime(tools.compiler, f"libclang_rt.fuzzer_no_main-{os.uname().machine}.a")
    command = [tools.compiler, "-O2", "-g1", "-fsanitize=address", "-shared-libasan"]
    return compile_extension([source], folder / "driver", command, [archive, "-lstdc++"])


def compile_kernel(source: Path, folder: Path, tools: Toolchain | None = None) -> Path:
    """Compile one module that is no part of the package as a kernel is; return its library."""
    setup = load_setup()
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"{source.stem}.c"
    directives = [f"-X{name}={value}" for name, value in setup.DIRECTIVES.items()]
    _run([sys.executable, "-m", "cython", *directives, "-Isrc", f"-o{made}", str(source)])
    compiler, flags, link = ("gcc", ("-O0", "-w"), ()) if tools is None else _how(tools)
    return compile_extension([made], folder / source.stem, [compiler, *flags], link)


def _how(tools: Toolchain) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    return tools.compiler, tools.compile, tools.link


def compile_extension(
    sources: Sequence[Path], target: Path, command: Sequence[str], link: Sequence[str]
) -> Path:
    """Compile and link C files to an extension module."""
    library = target.with_name(target.name + sysconfig.get_config_var("EXT_SUFFIX"))
    include = sysconfig.get_path("include")
    shared = [*command, f"-I{include}", "-fPIC", "-shared", *map(str, sources), *link]
    _run([*shared, f"-o{library}"])
    return library


def environment(tools: Toolchain, *path: Path, driver: Path | None = None) -> dict[str, str]:
    """The variables of a Python process that loads sanitized kernels from these folders."""
    first = [] if driver is None else [str(driver)]
    return os.environ | {
        "LD_PRELOAD": " ".join([*first, *tools.runtimes]),
        "PYTHONPATH": os.pathsep.join(map(str, (*path, ROOT))),
        "PYTHONMALLOC": "malloc",  # Python's own arenas would hide what is read beyond a buffer
        "ASAN_OPTIONS": ":".join(_ADDRESS_OPTIONS),
        "ARROW_DEFAULT_MEMORY_POOL": "system",  # so that pyarrow's buffers are watched as well
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1:exitcode=99",
    }


def load_setup() -> ModuleType:
    """setup.py as a module: its lists, and nothing is set up."""
    spec = importlib.util.spec_from_file_location("wirelake_setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run(command: list[str], **variables: str) -> None:
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True
    )
    if done.returncode:
        raise BuildError(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
