"""A release: the version, the changelog and a tag, in one commit. `make release` runs it.

    release.py check 0.2.0   says why 0.2.0 cannot be released now, if so
    release.py make 0.2.0    checks again, then writes, commits and tags

Nothing is published: `git push --follow-tags` and an upload of dist/ are for people to decide.
"""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

#: The files that have the version, and the line that it stands in.
VERSIONS = {
    "pyproject.toml": re.compile(r'^version = "(.+)"$', re.MULTILINE),
    "src/wirelake/__init__.py": re.compile(r'^__version__ = "(.+)"$', re.MULTILINE),
    "deploy/kubernetes/wirelake.yaml": re.compile(r"^ +image: wirelake:(.+)$", re.MULTILINE),
}
CHANGELOG = "CHANGELOG.md"
_UNRELEASED = re.compile(r"^## \[Unreleased\]\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")


class ReleaseError(Exception):
    """Why there can be no release."""


def git(*arguments: str) -> str:
    """What git prints; raises ReleaseError with its own words where it fails."""
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout


def numbers(version: str) -> tuple[int, ...]:
    """A version as numbers that compare; raises ReleaseError where it is none."""
    if not _VERSION.fullmatch(version):
        raise ReleaseError(f"{version!r} is not a version: write three numbers, as 0.2.0")
    return tuple(map(int, version.split(".")))


def current() -> str:
    """The version that the files have; raises ReleaseError where they disagree."""
    found = {file: pattern.search(Path(file).read_text()) for file, pattern in VERSIONS.items()}
    versions = {file: match[1] if match else "" for file, match in found.items()}
    if len(set(versions.values())) != 1:
        raise ReleaseError(f"the versions disagree: {versions}")
    return versions["pyproject.toml"]


def check(version: str) -> None:
    """Raise ReleaseError unless this version can be released from this tree."""
    wanted = numbers(version)
    if changed := git("status", "--porcelain").splitlines():
        raise ReleaseError(f"the tree has changes that are not committed: {changed[0].strip()}")
    if git("tag", "--list", f"v{version}"):
        raise ReleaseError(f"the tag v{version} is there already")
    released = [
        tag[1:] for tag in git("tag", "--list", "v*").split() if _VERSION.fullmatch(tag[1:])
    ]
    latest = max(map(numbers, released), default=None)
    if latest is not None and wanted <= latest:
        text = ".".join(map(str, latest))
        raise ReleaseError(f"{version} is not newer than {text}, which is released")
    if wanted < numbers(current()):
        raise ReleaseError(f"{version} is older than {current()}, which the files have")
    unreleased = _UNRELEASED.search(Path(CHANGELOG).read_text(encoding="utf-8"))
    if unreleased is None or not re.search(r"^- ", unreleased[1], re.MULTILINE):
        raise ReleaseError(f"{CHANGELOG} has no entry under [Unreleased]")


def make(version: str) -> None:
    """Write the version and the changelog, commit them, and tag the commit."""
    check(version)
    for file, pattern in VERSIONS.items():
        text = Path(file).read_text(encoding="utf-8")
        match = pattern.search(text)
        assert match is not None
        Path(file).write_text(text[: match.start(1)] + version + text[match.end(1) :], "utf-8")
    text = Path(CHANGELOG).read_text(encoding="utf-8")
    match = _UNRELEASED.search(text)
    assert match is not None
    heading = f"## [Unreleased]\n\n## [{version}] - {datetime.now(UTC):%Y-%m-%d}\n"
    text = text[: match.start()] + heading + match[1] + text[match.end() :]
    Path(CHANGELOG).write_text(text, encoding="utf-8")
    git("add", CHANGELOG, *VERSIONS)
    git("commit", "--quiet", "--message", f"chore: release {version}")
    message = f"Wirelake {version}\n\n{match[1].strip()}"
    git("tag", "--annotate", "--cleanup=whitespace", f"v{version}", "--message", message)
    print(f"release: v{version} is committed and tagged; nothing is published")


def main() -> None:
    """Do what the command line says."""
    steps = {"check": check, "make": make}
    if len(sys.argv) != 3 or sys.argv[1] not in steps:
        sys.exit("release: say which version: make release VERSION=0.2.0")
    try:
        steps[sys.argv[1]](sys.argv[2])
    except ReleaseError as error:
        sys.exit(f"release: {error}")


if __name__ == "__main__":
    main()
