"""Writes the captures in examples/captures: what a small fleet might send in every dialect.

.venv/bin/python examples/make_captures.py
"""

from pathlib import Path

from wirelake import Message, Op
from wirelake.dialects import DIALECTS
from wirelake.dialects.codec import encoder
from wirelake.message import Parameters
from wirelake.wire import FrameTable

FOLDER = Path(__file__).parent / "captures"

SESSION = [
    Message(op=Op.HANDSHAKE, source="thermostat-7", parameters=Parameters(connection="pub")),
    Message(op=Op.AUTH, parameters=Parameters(token="not-shown", client="thermostat-7")),
    Message(op=Op.SUBSCRIBE, address="house/+/target"),
    Message(address="house/kitchen/temp", payload=b'{"celsius": 21.5}', id="41"),
    Message(address="house/kitchen/temp", payload=b'{"celsius": 21.7}', id="42", priority=1),
    Message(op=Op.REQUEST, address="time", correlation_id="r1", payload=b"now?"),
    Message(
        op=Op.ENQUEUE, address="jobs/defrost", payload=b"\x01\x02\xff", headers={"trace": "a1"}
    ),
    Message(op=Op.CREATE, address="config/kitchen", payload=b"20"),
    Message(op=Op.PING),
]


def main() -> None:
    """Write one file a dialect, leaving out what it cannot say."""
    FOLDER.mkdir(exist_ok=True)
    table = FrameTable()
    table.fill(SESSION)
    for dialect in DIALECTS:
        ending = "txt" if dialect == "boson-text" else "bin"
        frames = encoder(dialect).encode(table)
        (FOLDER / f"tour.{dialect}.{ending}").write_bytes(frames)


if __name__ == "__main__":
    main()
