"""Measuring a broker from outside: load, publish rates, round trips, and the machine it runs on.

`load` generates the load for any server, `broker` tells it how to talk to ours, `rounds` says what
is measured and repeats it, `machine` describes the machine.
"""
