"""What a client subscribed to, and which inbox gets what comes in.

A topic's message goes to every inbox whose filter matches. A queue's message goes to one: to a
`get` that waits for it, else to the least full inbox of those who named the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from wirelake.address import has_wildcard, matches
from wirelake.client.inbox import Inbox
from wirelake.client.queue import Delivery, Pull
from wirelake.client.speech import Ask, Speech, can
from wirelake.dialects import DIALECTS
from wirelake.message import Message

#: What is in the inbox of a subscription: a topic's message, or a queue's.
Item: TypeAlias = "Message | Delivery"

#: Addresses whose subscriptions are remembered.
MAX_ROUTES = 10_000


class Subscriptions:
    """The filters of a client, and the inboxes of each."""

    def __init__(self, dialect: str) -> None:
        self.pulls: dict[str, list[Pull]] = {}
        self._has_addresses = DIALECTS[dialect].has_addresses
        self._inboxes: dict[str, list[Inbox[Item]]] = {}
        self._prefetch: dict[str, int] = {}
        self._routes: dict[str, list[Inbox[Item]]] = {}

    def add(self, filter: str, inbox: Inbox[Item], prefetch: int) -> bool:
        """Let an inbox have what a filter matches; is it the first one of that filter?"""
        inboxes = self._inboxes.setdefault(filter, [])
        inboxes.append(inbox)
        self._prefetch.setdefault(filter, prefetch)
        self._routes.clear()
        return len(inboxes) == 1

    def is_last(self, filter: str) -> bool:
        """Is there only one inbox of a filter?"""
        return len(self._inboxes[filter]) == 1

    def remove(self, filter: str, inbox: Inbox[Item]) -> None:
        """Give an inbox nothing more."""
        inboxes = self._inboxes[filter]
        inboxes.remove(inbox)
        self._routes.clear()
        if not inboxes:
            del self._inboxes[filter], self._prefetch[filter]
            return
        for item in inbox.discard(Delivery):
            assert isinstance(item, Delivery)
            item.give_back()  # to the others: the subscription goes on

    def asks(self, speech: Speech) -> list[tuple[Ask, list[Inbox[Any]]]]:
        """What is asked of a new connection, and for whom; for nobody where it may be refused."""
        asked: list[tuple[Ask, list[Inbox[Any]]]] = []
        for filter, inboxes in self._inboxes.items():
            prefetch = self._prefetch[filter]
            if prefetch and can(speech.dialect, "pull"):
                asked.append((speech.make_queue(filter), []))
            asked.append((speech.subscribe(filter, prefetch), list(inboxes)))
        return asked

    def inboxes(self) -> list[Inbox[Item]]:
        """All of them."""
        return [inbox for inboxes in self._inboxes.values() for inbox in inboxes]

    def forget_deliveries(self) -> None:
        """The connection is lost, and the broker gives what it had brought to somebody else."""
        for inbox in self.inboxes():
            inbox.discard(Delivery)

    def put(self, message: Message) -> Sequence[Inbox[Item]]:
        """A topic's message; the inboxes that got it."""
        inboxes = self._route(message.address)
        for inbox in inboxes:
            inbox.put(message, len(message.payload))
        return inboxes

    def put_delivery(self, delivery: Delivery) -> Sequence[Inbox[Item]]:
        """A queue's message; the inbox that got it. It is given back where nobody wants it."""
        queue = delivery.message.address
        for pull in self.pulls.get(queue, ()):
            if pull.wants_more:
                pull.taken.append(delivery)
                return ()
        if queue not in self._inboxes:
            delivery.give_back()
            return ()
        inbox = min(self._inboxes[queue], key=len)
        inbox.put(delivery, len(delivery.message.payload))
        return (inbox,)

    def only_address(self) -> str:
        """The one address that is subscribed to; empty where there may be others."""
        if len(self._inboxes) > 1:
            return ""
        return next((one for one in self._inboxes if not has_wildcard(one)), "")

    def _route(self, address: str) -> list[Inbox[Item]]:
        found = self._routes.get(address)
        if found is None:
            if len(self._routes) >= MAX_ROUTES:
                self._routes.clear()
            found = self._routes[address] = [
                inbox
                for filter, inboxes in self._inboxes.items()
                if not address or not self._has_addresses or matches(filter, address)
                for inbox in inboxes
            ]
        return found
