"""The package builds with compiled kernels and with plain ones, as WIRELAKE_BUILD asks."""

import ast
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import wirelake

ROOT = Path(__file__).parent.parent


def listed_kernels() -> list[str]:
    """The list in setup.py, read without running it."""
    for node in ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "KERNELS":
            kernels: list[str] = ast.literal_eval(node.value)
            return kernels
    raise AssertionError("setup.py has no KERNELS")


KERNELS = {name.replace(".", "/") for name in listed_kernels()}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what the package is built from, without what was built."""
    for name in ("LICENSE", "README.md", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, tmp_path)
    built = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=built)
    return tmp_path


def build(tree: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Build a wheel into tree/dist."""
    options = ["-v", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist"]
    return subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, "."],
        cwd=tree,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def contents(tree: Path) -> set[str]:
    """The names of the files in the one wheel that was built."""
    (wheel,) = tree.glob("dist/*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def compiled(names: set[str]) -> set[str]:
    """Which modules are there as extensions."""
    return {name.split(".")[0] for name in names if name.endswith(".so")}


def test_the_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert wirelake.__version__ == project["version"]


def test_every_kernel_has_its_source_and_every_pxd_its_kernel() -> None:
    sources = {str(p.relative_to(ROOT / "src").with_suffix("")) for p in ROOT.glob("src/**/*.py")}
    declared = {str(p.relative_to(ROOT / "src").with_suffix("")) for p in ROOT.glob("src/**/*.pxd")}
    assert sources >= KERNELS >= declared


def test_a_skipped_build_has_plain_kernels_only(tree: Path) -> None:
    assert build(tree, WIRELAKE_BUILD="skip").returncode == 0
    names = contents(tree)
    assert compiled(names) == set()
    assert names >= {f"{kernel}.py" for kernel in KERNELS}
    assert "wirelake/py.typed" in names
    assert "pyspark_wirelake/__init__.py" in names  # by which Spark finds our format


def test_a_build_without_a_compiler_warns_and_stays_plain(tree: Path) -> None:
    result = build(tree, WIRELAKE_BUILD="", CC="no-such-compiler")
    assert result.returncode == 0
    assert "kernels stay plain Python: there is no C compiler" in result.stdout + result.stderr
    assert compiled(contents(tree)) == set()


def test_a_required_build_without_a_compiler_fails(tree: Path) -> None:
    result = build(tree, WIRELAKE_BUILD="require", CC="no-such-compiler")
    assert result.returncode != 0
    assert "kernels cannot be compiled: there is no C compiler" in result.stdout + result.stderr


@pytest.mark.slow
def test_a_required_build_has_every_kernel_compiled(tree: Path) -> None:
    result = build(tree, WIRELAKE_BUILD="require")
    assert result.returncode == 0, result.stdout + result.stderr
    names = contents(tree)
    assert compiled(names) == KERNELS
    declared = {str(p.relative_to(tree / "src")) for p in tree.glob("src/**/*.pxd")}
    assert names >= {f"{kernel}.py" for kernel in KERNELS} | declared
    assert not list(tree.glob("src/**/*.c"))


def test_a_wheel_has_the_console_with_its_libraries_and_their_licences(tree: Path) -> None:
    static = ROOT / "src/wirelake/console/static"
    if not (static / "vendor" / "preact.js").exists():
        pytest.skip("no libraries of the console (make setup)")
    assert build(tree, WIRELAKE_BUILD="skip").returncode == 0
    files = {path.relative_to(ROOT / "src").as_posix() for path in static.rglob("*.*")}
    assert contents(tree) >= files
    assert {
        f"wirelake/console/static/vendor/{name}.LICENSE" for name in ("preact", "htm", "uplot")
    } <= files


def test_the_lock_file_names_hashes_and_no_host() -> None:
    text = (ROOT / "package-lock.json").read_text(encoding="utf-8")
    assert '"integrity": "sha512-' in text
    assert '"resolved"' not in text
