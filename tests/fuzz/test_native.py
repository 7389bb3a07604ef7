"""Compiled kernels under gcc's sanitizers: no report on seeds and mutations, and one on a fault."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.native import build
from fuzz.native.exercise import OTHERS
from wirelake.wire import DIALECTS

MUTATIONS = 600


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


@pytest.mark.slow
@pytest.mark.timeout(1200)
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

def run(data: cython.const[cython.uchar][::1], k: cython.Py_ssize_t) -> int:
    p: cython.p_const_uchar = cython.address(data[0])
    value: cython.longlong = data[0]
    return {fault}
"""
PROGRAM = """
from fuzz.native.exercise import exact
import kernel
print(kernel.run(exact(b"\\x7f" * 40), 40))
"""


@pytest.mark.parametrize(
    ("fault", "report"),
    [
        ("p[k - 1]", ""),
        ("p[k]", "heap-buffer-overflow"),
        ("data[k]", "heap-buffer-overflow"),
        ("p[-1]", "heap-buffer-overflow"),
        ("value << (k + 20)", "runtime error: left shift"),
        (
            "value * (cython.cast(cython.longlong, 1) << 60)",
            "runtime error: signed integer overflow",
        ),
    ],
)
def test_a_fault_in_a_kernel_is_reported(
    tools: build.Toolchain, tmp_path: Path, fault: str, report: str
) -> None:
    source = tmp_path / "kernel.py"
    source.write_text(KERNEL.format(fault=fault))
    build.compile_kernel(source, tmp_path / "made", tools)
    result = run(build.environment(tools, tmp_path / "made"), "-c", PROGRAM)
    if report:
        assert result.returncode != 0
        assert report in result.stderr
    else:
        assert (result.returncode, result.stdout) == (0, "127\n"), result.stderr


DRIVEN = """
import driver, kernel
def test(view):
    if len(view) > 2:
        kernel.run(view, len(view) - {inside})
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
    (tmp_path / "kernel.py").write_text(KERNEL.format(fault="p[k]"))
    build.compile_kernel(tmp_path / "kernel.py", tmp_path / "made", tools)
    environment = build.environment(tools, tmp_path / "made", tmp_path, driver=driver)
    beyond, inside = (run(environment, "-c", DRIVEN.format(inside=k)) for k in (0, 1))
    assert inside.returncode == 0, inside.stderr
    assert beyond.returncode != 0
    assert "heap-buffer-overflow" in beyond.stderr
