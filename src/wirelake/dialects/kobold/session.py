"""Sessions of Kobold: ops, and two readings of a frame's length (spec: kobold 1)."""

from __future__ import annotations

from wirelake.dialects.kobold.scanner import KoboldScanner
from wirelake.dialects.op_session import OpSession
from wirelake.errors import ProtocolError, RefusedError
from wirelake.message import Message
from wirelake.wire import FrameTable

#: How long an undecided first frame is waited on (decision 15), in seconds.
SETTLE_AFTER = 0.2


class KoboldSession(OpSession):
    """OpSession with Kobold's two readings of a length."""

    scanner: KoboldScanner

    def receive(self, data: memoryview, now: float) -> int:
        """Take what can be taken of these bytes; return how many."""
        used = super().receive(data, now)
        if self.scanner.undecided:
            self.node.wake_at.setdefault(self, now + SETTLE_AFTER)
        return used

    def answer_fault(self, error: ProtocolError) -> None:
        """ERR, as for anything else that cannot be done; its scanner makes no answers."""
        self.refuse(Message(), RefusedError("bad_request", error.reason))

    def wake(self, now: float) -> None:
        """Take an undecided first frame as it stands: nothing has followed it."""
        self.scanner.settle()
        self.link.receive_again()

    def control_rows(self, table: FrameTable, row: int, now: float) -> int:
        """Do what several rows ask for, and answer in kind."""
        self._answer_in_kind()
        return super().control_rows(table, row, now)

    def control(self, message: Message, now: float) -> None:
        """Do what one message asks for, and answer in kind."""
        self._answer_in_kind()
        super().control(message, now)

    def _answer_in_kind(self) -> None:
        if self.scanner.inclusive and not self.encoder.variant:
            self.use_variant("inclusive")
