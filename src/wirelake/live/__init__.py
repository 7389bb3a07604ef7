"""Running processes: a broker, or a broker with its pipeline and a live view of both.

`serving` runs a broker in this process. `group` runs broker and pipeline as child processes
(`children`), reads the broker's figures (`figures`) and shows them (`board`). `landing` tells how
far the pipeline is, `locks` keeps two processes from using the same files. `service` is the systemd
unit of a broker.
"""
