"""Connections by address: who is counted, and who is refused."""

import pytest

from wirelake.broker.peers import Peers


def test_one_address_has_a_limit_until_its_connections_authenticate_or_end() -> None:
    peers = Peers(per_peer=2)
    names = [peers.admit("192.0.2.1") for _ in range(3)]
    assert names[:2] == [("", "192.0.2.1")] * 2
    assert names[2][0] == "limits.connections_per_peer (2 without a token from 192.0.2.1)"
    assert peers.admit("192.0.2.2")[0] == ""
    peers.forget("192.0.2.1")
    assert peers.admit("192.0.2.1")[0] == ""


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", ""])
def test_loopback_and_sockets_of_this_machine_are_exempt(host: str) -> None:
    peers = Peers(per_peer=1)
    assert [peers.admit(host) for _ in range(5)] == [("", "")] * 5


def test_of_ipv6_the_network_counts() -> None:
    peers = Peers(per_peer=1)
    assert peers.admit("2001:db8::1") == ("", "2001:db8::/64")
    assert peers.admit("2001:db8::ffff:2")[0] != ""
    assert peers.admit("2001:db8:0:1::1")[0] == ""


def test_all_together_have_a_limit_too() -> None:
    peers = Peers(most=2)
    assert [peers.admit("127.0.0.1")[0] for _ in range(3)] == ["", "", "limits.connections (2)"]
