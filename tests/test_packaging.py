"""The package builds with compiled kernels and with plain ones, as WIRELAKE_BUILD asks."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
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


def copy_sources(folder: Path) -> Path:
    """Copy what the package is built from, without what was built."""
    for name in (
        "CHANGELOG.md",
        "LICENSE",
        "MANIFEST.in",
        "README.md",
        "pyproject.toml",
        "setup.py",
    ):
        shutil.copy(ROOT / name, folder)
    built = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", folder / "src", ignore=built)
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the sources."""
    return copy_sources(tmp_path)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files of a wheel with plain kernels, built from a copy of the sources."""
    folder = copy_sources(tmp_path_factory.mktemp("plain"))
    assert build(folder, WIRELAKE_BUILD="skip").returncode == 0
    return contents(folder)


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


def test_a_skipped_build_has_plain_kernels_only(plain: set[str]) -> None:
    assert compiled(plain) == set()
    assert plain >= {f"{kernel}.py" for kernel in KERNELS}
    assert "wirelake/py.typed" in plain
    assert "pyspark_wirelake/__init__.py" in plain  # by which Spark finds our format


def test_a_build_without_a_compiler_warns_and_stays_plain(tree: Path) -> None:
    result = build(tree, WIRELAKE_BUILD="", CC="no-such-compiler")
    assert result.returncode == 0
    assert "kernels stay plain Python: there is no C compiler" in result.stdout + result.stderr
    assert compiled(contents(tree)) == set()


def test_a_required_build_without_a_compiler_fails(tree: Path) -> None:
    result = build(tree, WIRELAKE_BUILD="require", CC="no-such-compiler")
    assert result.returncode != 0
    assert "kernels cannot be compiled: there is no C compiler" in result.stdout + result.stderr


@pytest.mark.soak  # it compiles every kernel once more
def test_a_required_build_has_every_kernel_compiled(tree: Path) -> None:
    result = build(tree, WIRELAKE_BUILD="require")
    assert result.returncode == 0, result.stdout + result.stderr
    names = contents(tree)
    assert compiled(names) == KERNELS
    declared = {str(p.relative_to(tree / "src")) for p in tree.glob("src/**/*.pxd")}
    assert names >= {f"{kernel}.py" for kernel in KERNELS} | declared
    assert not list(tree.glob("src/**/*.c"))


def test_a_wheel_has_the_console_with_its_libraries_and_their_licences(plain: set[str]) -> None:
    static = ROOT / "src/wirelake/console/static"
    if not (static / "vendor" / "preact.js").exists():
        pytest.skip("no libraries of the console (make setup)")
    files = {path.relative_to(ROOT / "src").as_posix() for path in static.rglob("*.*")}
    assert plain >= files
    assert {
        f"wirelake/console/static/vendor/{name}.LICENSE" for name in ("preact", "htm", "uplot")
    } <= files


def test_an_sdist_builds_the_same_wheel_as_the_repository(
    tree: Path, tmp_path: Path, plain: set[str]
) -> None:
    program = "from setuptools.build_meta import build_sdist; print(build_sdist('.'))"
    made = subprocess.run([sys.executable, "-c", program], cwd=tree, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    sdist = tree / made.stdout.splitlines()[-1]
    unpacked = tmp_path / "unpacked"
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    (inside,) = unpacked.iterdir()
    assert {path.name for path in inside.iterdir()} >= {"CHANGELOG.md", "LICENSE", "README.md"}
    assert not (inside / "tests").exists()
    assert build(inside, WIRELAKE_BUILD="skip").returncode == 0
    assert contents(inside) == plain


def test_tested_pythons_have_a_classifier_and_are_in_the_guide() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = [
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", one)
        for one in project["classifiers"]
    ]
    tested = [match[1] for match in found if match]
    assert f">={tested[0]}" == project["requires-python"]
    guide = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert f"Tested: {' and '.join(tested)}," in guide


def test_a_plain_install_has_neither_spark_nor_screens_nor_sql() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {re.split(r"[^\w-]", one)[0] for one in project["dependencies"]}
    extras = project["optional-dependencies"]
    everything = extras.pop("all")
    assert everything == [f"wirelake[{','.join(extras)}]"]
    for wanted in extras.values():
        assert not needed & {re.split(r"[^\w-]", one)[0] for one in wanted}
    table = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == {*extras, "all"}


#: Runs the command line where packages of extras cannot be imported.
WITHOUT_EXTRAS = """
import sys
sys.modules |= dict.fromkeys(["duckdb", "pyspark", "deltalake", "textual", "fastavro", "nats"])
from wirelake.cli import main
main()
"""


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ("--version", 0, "wirelake "),
        ("lake land --url http://127.0.0.1:1 --table x --once", 1, "pip install 'wirelake[spark]'"),
        ("serve --listen auto://0.0.0.0:0", 1, "no tokens are configured"),  # all is imported
        ("pub mfp://127.0.0.1:1 a b", 1, "127.0.0.1:1"),
    ],
)
def test_commands_work_or_name_the_extra_without_it(arguments: str, code: int, told: str) -> None:
    command = [sys.executable, "-c", WITHOUT_EXTRAS, *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert told in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == code


def test_the_lock_file_names_hashes_and_no_host() -> None:
    text = (ROOT / "package-lock.json").read_text(encoding="utf-8")
    assert '"integrity": "sha512-' in text
    assert '"resolved"' not in text
