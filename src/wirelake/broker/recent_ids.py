"""The ids of messages that a queue took lately, so that a retry is taken once (decision 41)."""

from __future__ import annotations

from collections import OrderedDict

#: A queue remembers this many message ids at most; the oldest are forgotten before their time.
MOST_IDS = 1_000_000
#: Ids that are forgotten at once, since their time is up.
FORGOTTEN_AT_ONCE = 1_000


class RecentIds:
    """The ids of messages that a queue took within its `dedup_window`."""

    def __init__(self) -> None:
        self._until: OrderedDict[str, float] = OrderedDict()  # the oldest first

    def __len__(self) -> int:
        return len(self._until)

    def has(self, identity: str, now: float) -> bool:
        """Return whether an id was taken within the window."""
        return self._until.get(identity, now) > now

    def add(self, identity: str, until: float) -> bool:
        """Remember an id; return whether the oldest had to be forgotten for it."""
        self._until.pop(identity, None)  # an old one may be there still, and comes last now
        self._until[identity] = until
        if len(self._until) > MOST_IDS:
            self._until.popitem(last=False)
            return True
        return False

    def forget(self, now: float) -> None:
        """Forget expired ids, at most `FORGOTTEN_AT_ONCE` of them."""
        for _ in range(FORGOTTEN_AT_ONCE):
            if self.next() > now:
                return
            self._until.popitem(last=False)

    def next(self) -> float:
        """Return when the oldest id expires, infinity where there is none."""
        return next(iter(self._until.values()), float("inf"))
