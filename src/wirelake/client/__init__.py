"""Clients of a broker, for programs: asynchronous and not."""

from wirelake.client.client import Client, connect
from wirelake.client.inbox import Arrivals, Messages
from wirelake.client.queue import Delivery, Queue
from wirelake.client.service import Service
from wirelake.client.store import Change, Entry, Store
from wirelake.client.stream import Stream
from wirelake.client.sync import SyncClient, connect_sync

__all__ = [
    "Arrivals",
    "Change",
    "Client",
    "Delivery",
    "Entry",
    "Messages",
    "Queue",
    "Service",
    "Store",
    "Stream",
    "SyncClient",
    "connect",
    "connect_sync",
]
