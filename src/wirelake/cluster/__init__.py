"""Several nodes as one broker: who is there, who owns which partition, and the links between them.

`members`, `ownership` and the channels of `peers` decide without I/O: bytes, events and the time go
in, bytes and actions come out. `bus` is the way to NATS, `coordinator` runs all of it.
"""
