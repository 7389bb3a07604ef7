"""Compiled kernels under gcc's sanitizers: no report on seeds and mutations, and one on a fault."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.native import build
from fuzz.native.exercise import OTHERS
from wirelake.dialects import DIALECTS

MUTATIONS = 400

pytestmark = pytest.mark.timeout(1200)  # compiling takes long on a busy machine


@pytest.fixture(scope="module")
def tools() -> build.Toolchain:
    """gcc, where it comes with sanitizers."""
    try:
        return build.gcc()
    except build.BuildError as error:
        pytest.skip(str(error))


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python under the sanitizers."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=build.ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )


def test_no_memory_error_in_seeds_and_mutations(tools: build.Toolchain, tmp_path: Path) -> None:
    environment = build.environment(tools, build.build_kernels(tools))
    last = tmp_path / "input"
    environment["LAST_INPUT"] = str(last)
    result = run(environment, "fuzz/native/short.py", str(MUTATIONS))
    assert result.returncode == 0, f"{result.stderr}\nthe input: {last.read_bytes()!r}"
    done = json.loads(result.stdout)
    assert set(done) == {*DIALECTS, *OTHERS}
    assert all(target["inputs"] > MUTATIONS for target in done.values())
    assert all(target["read"] > 1000 for target in done.values()), done


KERNEL = """
import cython

def run(data: cython.const[cython.uchar][::1], fault: str) -> int:
    n: cython.Py_ssize_t = len(data)
    p: cython.p_const_uchar = cython.address(data[0])
    value: cython.longlong = p[n - 1]
    if fault == "read behind":
        return p[n]
    if fault == "read behind a view":
        return data[n]
    if fault == "read before":
        return p[n - n - 1]
    if fault == "shift":
        return value << (n + 20)
    if fault == "overflow":
        return value * (value << 50)
    return value
"""
PROGRAM = """
import sys, kernel
from fuzz.native.exercise import exact
print(kernel.run(exact(bytes(39) + b"\\x7f"), sys.argv[1]))
"""
FAULTS = {
    "none": "",
    "read behind": "heap-buffer-overflow",
    "read behind a view": "heap-buffer-overflow",
    "read before": "heap-buffer-overflow",
    "shift": "runtime error: left shift",
    "overflow": "runtime error: signed integer overflow",
}


def compiled(tools: build.Toolchain, folder: Path) -> Path:
    """The folder of a kernel that is at fault on demand."""
    source = folder / "kernel.py"
    source.write_text(KERNEL)
    return build.compile_kernel(source, folder / "made", tools).parent


@pytest.fixture(scope="module")
def faulty(tools: build.Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a kernel that is at fault on demand, compiled by gcc."""
    return compiled(tools, tmp_path_factory.mktemp("faulty"))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_kernel_is_reported(tools: build.Toolchain, faulty: Path, fault: str) -> None:
    result = run(build.environment(tools, faulty), "-c", PROGRAM, fault)
    if FAULTS[fault]:
        assert result.returncode == 99
        assert FAULTS[fault] in result.stderr
    else:
        assert (result.returncode, result.stdout) == (0, "127\n"), result.stderr


DRIVEN = """
import sys, driver, kernel
def test(view):
    if len(view) > 2:
        kernel.run(view, sys.argv[1])
    return 0
driver.run(["exact", "-runs=200", "-max_len=64"], test, lambda data, most, seed: data, 1 << 40)
"""


@pytest.mark.slow
def test_libfuzzer_hands_out_memory_of_exactly_the_size_of_an_input(tmp_path: Path) -> None:
    try:
        tools = build.clang()
        driver = build.build_driver(tools, tmp_path)
    except build.BuildError as error:
        pytest.skip(str(error))
    environment = build.environment(tools, compiled(tools, tmp_path), tmp_path, driver=driver)
    none, beyond = (run(environment, "-c", DRIVEN, fault) for fault in ("none", "read behind"))
    assert none.returncode == 0, none.stderr
    assert beyond.returncode != 0
    assert "heap-buffer-overflow" in beyond.stderr
