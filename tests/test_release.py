"""`make release`: version, changelog and tag in one commit, from a tree where all is committed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts" / "release.py"
FILES = [
    "CHANGELOG.md",
    "pyproject.toml",
    "src/wirelake/__init__.py",
    "deploy/kubernetes/wirelake.yaml",
]


class Repository:
    """A repository with the files that a release changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for file in FILES:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, folder / file)
        self.git("init", "--quiet")
        self.git("config", "user.name", "Somebody")
        self.git("config", "user.email", "somebody@example.org")
        self.commit()

    def git(self, *arguments: str) -> str:
        """What git prints."""
        command = ["git", *arguments]
        return subprocess.run(
            command, cwd=self.folder, check=True, capture_output=True, text=True
        ).stdout

    def commit(self) -> None:
        """Commit everything."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "all of it")

    def release(self, step: str, version: str) -> subprocess.CompletedProcess[str]:
        """Run the script."""
        command = [sys.executable, str(SCRIPT), step, version]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True)

    def refusal(self, version: str) -> str:
        """Why this version cannot be released; neither step changes anything."""
        before = self.git("rev-parse", "HEAD"), self.git("tag", "--list")
        checked, made = self.release("check", version), self.release("make", version)
        assert checked.returncode == made.returncode == 1
        assert checked.stderr == made.stderr
        assert (self.git("rev-parse", "HEAD"), self.git("tag", "--list")) == before
        return checked.stderr.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A repository in which everything is committed."""
    return Repository(tmp_path)


def test_a_release_is_one_commit_with_version_changelog_and_tag(repository: Repository) -> None:
    before = (repository.folder / "CHANGELOG.md").read_text()
    assert repository.release("check", "9.1.0").returncode == 0
    assert repository.git("tag", "--list") == ""  # a check changes nothing
    assert repository.release("make", "9.1.0").returncode == 0
    assert repository.git("status", "--porcelain") == ""
    assert repository.git("rev-list", "--count", "HEAD") == "2\n"
    assert repository.git("describe").strip() == "v9.1.0"
    project = tomllib.loads((repository.folder / "pyproject.toml").read_text())["project"]
    assert project["version"] == "9.1.0"
    assert '__version__ = "9.1.0"' in (repository.folder / FILES[2]).read_text()
    assert "image: wirelake:9.1.0\n" in (repository.folder / FILES[3]).read_text()
    changes = (repository.folder / "CHANGELOG.md").read_text()
    heading = re.search(
        r"^## \[Unreleased\]\n\n## \[9\.1\.0\] - \d{4}-\d\d-\d\d\n", changes, re.MULTILINE
    )
    assert heading is not None
    assert changes.replace(heading[0], "## [Unreleased]\n") == before
    tagged = repository.git("tag", "--list", "--format=%(contents)", "v9.1.0")
    assert "### Added" in tagged


def test_a_tree_with_changes_is_refused(repository: Repository) -> None:
    (repository.folder / "new.txt").write_text("")
    assert repository.refusal("9.1.0") == (
        "release: the tree has changes that are not committed: ?? new.txt"
    )


def test_a_version_must_be_one_and_newer_than_the_last(repository: Repository) -> None:
    assert repository.refusal("").startswith("release: '' is not a version")
    assert repository.refusal("v9.1").startswith("release: 'v9.1' is not a version")
    assert repository.refusal("0.0.1").startswith("release: 0.0.1 is older than")
    repository.git("tag", "v9.1.0")
    assert repository.refusal("9.1.0") == "release: the tag v9.1.0 is there already"
    assert repository.refusal("9.0.9") == (
        "release: 9.0.9 is not newer than 9.1.0, which is released"
    )


def test_a_release_that_changes_nothing_is_refused(repository: Repository) -> None:
    assert repository.release("make", "9.1.0").returncode == 0
    assert repository.refusal("9.2.0") == "release: CHANGELOG.md has no entry under [Unreleased]"


def test_versions_that_disagree_are_refused(repository: Repository) -> None:
    (repository.folder / "src/wirelake/__init__.py").write_text('__version__ = "7.0.0"\n')
    repository.commit()
    assert "the versions disagree" in repository.refusal("9.1.0")
