"""Start a broker of the Wirelake that is installed beside this Python, and publish through it.

Run by the Python of an environment that has nothing but a wheel and its dependencies. It ends with
an error unless the kernels are compiled, the console is there and a message arrives.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.request import urlopen

PROGRAM = Path(sys.executable).parent / "wirelake"


def main() -> None:
    """Start the broker on free ports, in an empty folder."""
    version = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True)
    if "compiled" not in version.stdout:
        sys.exit(f"{PROGRAM}: the kernels are not compiled: {version.stdout.strip()}")
    with tempfile.TemporaryDirectory() as folder:
        places = ["--listen", "auto://127.0.0.1:0", "--http", "127.0.0.1:0"]
        broker = subprocess.Popen(
            [PROGRAM, "serve", *places],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert broker.stdout is not None
        try:
            told = [broker.stdout.readline().split()[-1:] for _ in range(2)]
            if [] in told:
                sys.exit("the broker does not start")
            wire, http = (words[0] for words in told)
            check(wire.removeprefix("auto://"), http)
        finally:
            broker.terminate()
            broker.wait(60)
    if broker.returncode != 0:
        sys.exit(f"the broker ended with {broker.returncode}")
    print(f"{version.stdout.strip()}, Python {sys.version.split()[0]}: works")


def check(place: str, http: str) -> None:
    """Raise an error unless the broker is healthy, takes a message and shows its console."""
    with urlopen(f"{http}/healthz", timeout=60) as answer:
        assert b'"ok"' in answer.read()
    pub = [PROGRAM, "pub", f"kobold-3://{place}", "house/door", "open", "--ack"]
    subprocess.run(pub, check=True, timeout=60)
    with urlopen(f"{http}/v1/log", timeout=60) as answer:
        assert answer.status == 200
    with urlopen(f"{http}/", timeout=60) as answer:
        assert b"<script" in answer.read(), "the wheel has no console"


if __name__ == "__main__":
    main()
