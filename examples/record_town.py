"""Records examples/town.pcap: the packets of `wirelake demo` on loopback, for some seconds.

Needs Linux and root; a network namespace of its own has the default ports free:

    sudo unshare -n .venv/bin/python examples/record_town.py
"""

import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

FILE = Path(__file__).parent / "town.pcap"
#: The beginning of a pcap file of Ethernet frames, with times in microseconds.
HEAD = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 17, 1)
#: Packets of any protocol; where the ports are, behind the headers of Ethernet and IPv4.
ANY, PORTS = 3, 34
#: Connections of more bytes are left out: cameras send pictures of noise.
MOST = 64 << 10


def record(until: threading.Event) -> list[tuple[int, bytes]]:
    """Return time and bytes of what passes on loopback, each packet once."""
    packets = []
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ANY)) as loopback:
        loopback.bind(("lo", ANY))
        loopback.settimeout(0.1)
        while not until.is_set():
            with suppress(TimeoutError):
                frame, (_, _, kind, *_) = loopback.recvfrom(1 << 17)
                if kind == socket.PACKET_OUTGOING:
                    packets.append((time.time_ns() // 1000, frame))
    return packets


def connection(frame: bytes) -> tuple[int, ...]:
    """Return the ports of a frame, in one order for both directions."""
    return tuple(sorted(struct.unpack_from(">HH", frame, PORTS)))


def write(packets: list[tuple[int, bytes]]) -> None:
    """Write a pcap file, without the connections that carry pictures."""
    sizes = Counter[tuple[int, ...]]()
    for _, frame in packets:
        sizes[connection(frame)] += len(frame)
    with FILE.open("wb") as out:
        out.write(HEAD)
        for at, frame in packets:
            if sizes[connection(frame)] < MOST:
                size = len(frame)
                out.write(struct.pack("<IIII", at // 10**6, at % 10**6, size, size) + frame)


def main() -> None:
    """Run a broker and the demo, and record both."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    wirelake = [sys.executable, "-m", "wirelake"]
    with tempfile.TemporaryDirectory() as folder:
        broker = subprocess.Popen([*wirelake, "serve", "--data", folder], cwd=folder)
        subprocess.run([*wirelake, "health", "--wait", "30"], check=True)
        over = threading.Event()
        with ThreadPoolExecutor() as pool:
            recording = pool.submit(record, over)
            demo = [*wirelake, "demo", "--duration", "8", "--rate", "40", "--no-report"]
            subprocess.run(demo, check=True)
            over.set()
        write(recording.result())
        broker.terminate()
        broker.wait()


if __name__ == "__main__":
    main()
