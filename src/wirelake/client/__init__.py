"""Clients of a broker, for programs: asynchronous and not."""

from wirelake.client.client import Client, connect
from wirelake.client.inbox import Messages
from wirelake.client.service import Service
from wirelake.client.sync import SyncClient, connect_sync

__all__ = ["Client", "Messages", "Service", "SyncClient", "connect", "connect_sync"]
