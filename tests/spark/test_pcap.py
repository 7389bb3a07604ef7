"""Captures of packets: what a network does to them, and what is made of it; without Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.spark.packets import START, Wire, pcap, pcapng
from tests.wire.reading import write
from wirelake.dialects import DIALECTS, default_ports
from wirelake.errors import ConfigError
from wirelake.message import Message, Op
from wirelake.spark.flows import Found, Ports, find_in_packets
from wirelake.spark.pcap import is_pcap, traffic
from wirelake.spark.spans import batches
from wirelake.wire.arrow import SCHEMA

STEP = 1 << 20
HELLO = write([Message(address="greet", payload=b"hello")], "kobold-1")
WORLD = write([Message(address="greet", payload=b"world")], "kobold-1")
AGAIN = write([Message(address="greet", payload=b"again")], "kobold-1")

PORTS = default_ports()


def find(data: bytes, ports: str = "known", dialect: str = "", step: int = STEP) -> Found:
    """What is in a file of packets."""
    assert is_pcap(memoryview(data))
    return find_in_packets(memoryview(data), Ports.parse(ports), dialect, step)


def rows(data: bytes, found: Found) -> list[dict[str, Any]]:
    """The messages that were found, decoded."""
    parts = [
        batch
        for stream in found.streams
        for span in stream.spans
        for batch in batches(span, memoryview(data), 0, 0)
    ]
    return pa.Table.from_batches(parts, SCHEMA).to_pylist()  # type: ignore[no-any-return]  # no types


def payloads(data: bytes, found: Found) -> list[bytes]:
    """The payloads of the messages that were found."""
    return [row["payload"] for row in rows(data, found)]


def read_clean(data: bytes, ports: str = "known") -> list[dict[str, Any]]:
    """The messages of a file without a fault."""
    found = find(data, ports)
    assert found.faults == []
    return rows(data, found)


def reasons(found: Found) -> list[str]:
    """Why something was not read."""
    return [fault.reason for fault in found.faults]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("port", ["family", "auto"])
def test_both_directions_are_read_in_every_dialect(dialect: str, port: str) -> None:
    asked = [Message(address="a/b", payload=b"to you")]
    if DIALECTS[dialect].introduces_itself:
        asked.insert(0, Message(op=Op.HANDSHAKE, source="client"))
    answered = [Message(address="a/b", payload=b"and back", id="0" * 32)]
    wire = Wire(PORTS[dialect.partition("-")[0]] if port == "family" else 7700)
    packets = [
        *wire.open(),
        wire.send(0, write(asked, dialect)),
        wire.send(1, write(answered, dialect, client=False)),
    ]
    found = [row for row in read_clean(pcap(packets)) if row["op"] == "publish"]
    assert [row["payload"] for row in found] == [b"to you", b"and back"]
    assert {row["dialect"] for row in found} == {dialect}


@pytest.mark.parametrize("gap", [False, True], ids=["whole", "with a gap"])
def test_both_directions_of_a_little_endian_tmq_connection_are_read(gap: bool) -> None:
    """spec: tmq 2, decision 65: what the client's Hello told holds for the broker's side."""
    asked = [Message(op=Op.HANDSHAKE), Message(op=Op.HELLO, payload=b"Client-Id: c\r\n")]
    asked.append(Message("a/b", b"x" * 300, content_type=0x0102))
    accepted = write([Message(op=Op.HANDSHAKE), Message(op=Op.OK)], "tmq-1.01", little=True)
    answered = [Message("a/b", b"y" * k, content_type=0x0102) for k in (300, 301)]
    wire = Wire(PORTS["tmq"])
    packets = [*wire.open(), wire.send(0, write(asked, "tmq-1.01", little=True))]
    first = wire.send(1, accepted)  # which tells the order, too
    packets += [] if gap else [first]
    packets.append(wire.send(1, write(answered, "tmq-1.01", client=False, little=True)))
    data = pcap(packets)
    found = find(data)
    published = [row for row in rows(data, found) if row["op"] == "publish"]
    assert [len(row["payload"]) for row in published] == [300, 300, 301]
    assert {row["content_type"] for row in published} == {0x0102}
    assert len(reasons(found)) == gap


def test_a_message_has_the_time_of_the_packet_in_which_it_ends() -> None:
    wire = Wire(7702)
    stream = HELLO + WORLD + AGAIN
    packets = [
        *wire.open(),
        wire.send(0, stream[:5]),
        wire.send(0, stream[5 : len(HELLO) + len(WORLD)]),
        wire.send(0, AGAIN[:-1]),
        wire.send(0, AGAIN[-1:]),
    ]
    times = [round(row["timestamp"].timestamp() * 1e6) - START for row in read_clean(pcap(packets))]
    assert times == [4000, 4000, 6000]


@pytest.mark.parametrize("link", [0, 1, 101, 108, 113, 276])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", ["pcap", "nano", "pcapng"])
@pytest.mark.parametrize("hosts", [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")])
def test_every_form_of_file_and_link_gives_the_same(
    link: int, order: str, kind: str, hosts: tuple[str, str]
) -> None:
    wire = Wire(7702, client=hosts[0], host=hosts[1])
    packets = [*wire.open(), wire.send(0, HELLO), wire.send(1, WORLD)]
    if kind == "pcapng":
        data = pcapng(packets, link=link, order=order)
    else:
        data = pcap(packets, link=link, order=order, nano=kind == "nano")
    found = read_clean(data)
    assert [row["payload"] for row in found] == [b"hello", b"world"]
    assert [round(row["timestamp"].timestamp() * 1e6) for row in found] == [
        START + 3000,
        START + 4000,
    ]


@given(data=st.data())
@settings(derandomize=True, database=None, deadline=None, max_examples=80)
def test_reordered_repeated_and_overlapping_segments_are_one_stream(data: st.DataObject) -> None:
    texts = [b"%d" % k * 30 for k in range(12)]
    stream = write([Message(address="a", payload=text) for text in texts], "kobold-3")
    start = data.draw(st.sampled_from([1000, 0xFFFFFFFF - 100]))  # sequence numbers begin anew
    wire = Wire(7702, start=start)
    opening = wire.open()
    begin = wire.next[0]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1), max_size=8)))
    bounds = list(zip([0, *cuts], [*cuts, len(stream)], strict=True))
    extra = data.draw(
        st.lists(
            st.tuples(st.integers(0, len(stream) - 1), st.integers(1, 60)).map(
                lambda pair: (pair[0], min(len(stream), sum(pair)))
            ),
            max_size=4,
        )
    )
    order = data.draw(st.permutations(bounds + extra))
    packets = [
        wire.packet(0, stream[low:high], at=(begin + low) & 0xFFFFFFFF) for low, high in order
    ]
    file = pcap([*opening, *packets])
    found = find(file, step=data.draw(st.sampled_from([1, 100, STEP])))
    assert found.faults == []
    decoded = rows(file, found)
    assert [row["payload"] for row in decoded] == texts
    times = [row["timestamp"] for row in decoded]
    assert times == sorted(times)


def test_a_gap_is_reported_and_reading_goes_on_at_the_next_frame() -> None:
    wire = Wire(7702)
    packets = [*wire.open(), wire.send(0, HELLO + WORLD[:7])]
    wire.send(0, WORLD[7:20])  # nobody captured this
    packets += [wire.send(0, WORLD[20:]), wire.send(0, AGAIN), wire.send(0, HELLO)]
    data = pcap(packets)
    found = find(data)
    assert payloads(data, found) == [b"hello", b"again", b"hello"]
    (reason,) = reasons(found)
    assert reason == (
        "10.0.0.1:40000 to 10.0.0.2:7702: 13 bytes are missing, and with them the end of a frame of"
        f" which 7 are here; {len(WORLD) - 20} bytes are skipped"
    )
    assert data[found.faults[0].place :].startswith(WORLD[20:])
    assert found.faults[0].dialect == "kobold-1"


def test_a_gap_between_two_frames_costs_only_what_is_missing() -> None:
    wire = Wire(7777)
    hello = [Message(op=Op.HANDSHAKE, source="doorbell"), Message(address="door", payload=b"1")]
    packets = [*wire.open(), wire.send(0, write(hello, "mfp-1"))]
    one = write([Message(address="door", payload=b"2")], "mfp-1")[-24:]
    wire.send(0, one)
    data = pcap([*packets, wire.send(0, one), wire.send(0, one)])
    found = find(data)
    published = [row for row in rows(data, found) if row["op"] == "publish"]
    assert [(row["address"], row["payload"]) for row in published] == [
        ("door", b"1"),
        ("door", b"2"),
        ("door", b"2"),
    ]
    assert reasons(found) == ["10.0.0.1:40000 to 10.0.0.2:7777: 24 bytes are missing"]


def test_a_gap_behind_which_no_frame_begins_costs_the_rest() -> None:
    wire = Wire(7702)
    packets = [*wire.open(), wire.send(0, HELLO)]
    wire.send(0, b"gone")
    data = pcap([*packets, wire.send(0, b"\xff" * 30)])
    found = find(data)
    assert payloads(data, found) == [b"hello"]
    (reason,) = reasons(found)
    assert reason.endswith("4 bytes are missing; no frame begins in the 30 bytes that follow")


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("ports", ["known", "all"])
def test_a_connection_joined_midway_is_read_from_the_first_frame_that_is_found(
    dialect: str, ports: str
) -> None:
    messages = [Message(address="a/b", payload=b"%d" % k, id="7") for k in range(3)]
    frames = write(messages, dialect)
    port = PORTS[dialect.partition("-")[0]] if ports == "known" else 9000
    wire = Wire(port)
    data = pcap([wire.send(0, b"\xff\xfe of an earlier frame"), wire.send(0, frames)])
    found = find(data, ports)
    published = [row for row in rows(data, found) if row["op"] == "publish"]
    assert [row["payload"] for row in published] == [b"0", b"1", b"2"]
    (reason,) = reasons(found)
    assert reason.endswith("joined midway; 22 bytes are skipped")


def test_a_broker_whose_client_was_not_heard_is_read_all_the_same() -> None:
    wire = Wire(7702)
    data = pcap([*wire.open(), wire.send(1, HELLO)])
    found = find(data)
    assert payloads(data, found) == [b"hello"]
    (reason,) = reasons(found)
    assert reason == "10.0.0.2:7702 to 10.0.0.1:40000: what its client sent first is not here"


def test_a_stream_that_breaks_its_grammar_is_read_up_to_there() -> None:
    wire = Wire(7702)
    other = Wire(7702, port=40001)
    packets = [*wire.open(), *other.open(), wire.send(0, HELLO + b"\xff" * 9), wire.send(0, WORLD)]
    packets.append(other.send(0, AGAIN))
    data = pcap(packets)
    found = find(data)
    assert payloads(data, found) == [b"hello", b"again"]
    (fault,) = found.faults
    assert f"nothing is read of the last {9 + len(WORLD)} bytes" in fault.reason
    assert data[fault.place :].startswith(b"\xff" * 9)


def test_a_frame_that_the_capture_ends_in_is_reported() -> None:
    wire = Wire(7702)
    data = pcap([*wire.open(), wire.send(0, HELLO + WORLD[:9])])
    found = find(data)
    assert payloads(data, found) == [b"hello"]
    (reason,) = reasons(found)
    assert "the stream ends inside a frame" in reason


def test_a_port_that_is_used_again_is_another_connection() -> None:
    first, second = Wire(7702), Wire(7702, start=77)
    packets = [*first.open(), first.send(0, HELLO), *second.open(), second.send(0, WORLD)]
    data = pcap(packets)
    found = find(data)
    assert payloads(data, found) == [b"hello", b"world"]
    assert len(traffic(memoryview(data)).connections) == 2


def test_a_syn_that_was_sent_twice_opens_one_connection() -> None:
    wire = Wire(7702)
    opening = wire.open()
    data = pcap([opening[0], *opening, wire.send(0, HELLO)])
    assert [row["payload"] for row in read_clean(data)] == [b"hello"]
    assert len(traffic(memoryview(data)).connections) == 1


def test_only_the_ports_that_are_asked_for_are_read() -> None:
    ours, theirs = Wire(9000), Wire(443, port=50000)
    packets = [*ours.open(), ours.send(0, HELLO), *theirs.open(), theirs.send(0, b"GET / HTTP/1.1")]
    data = pcap(packets)
    assert read_clean(data) == []
    assert len(read_clean(data, "9000")) == 1
    assert len(read_clean(data, "7702, 9000=kobold")) == 1
    found = find(data, "all")
    assert payloads(data, found) == [b"hello"]
    (reason,) = reasons(found)
    assert reason == "10.0.0.1:50000 to 10.0.0.2:443: no stream of any dialect begins like this"


@pytest.mark.parametrize("text", ["", "x", "0", "65536", "7702,", "7702=smtp", "-1"])
def test_ports_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--ports"):
        Ports.parse(text)


def test_what_cannot_be_put_together_is_counted_and_reported_once() -> None:
    wire = Wire(7702)
    packets = [*wire.open(), wire.send(0, HELLO)]
    fragment = bytearray(packets[-1])
    fragment[6] = 0x20  # more fragments
    found = find(pcap([*packets, bytes(fragment), bytes(fragment)]))
    assert reasons(found) == ["IP fragments of TCP, which are not put together (2)"]
    found = find(pcap(packets, link=101).replace(b"\x65\0\0\0", b"\x2a\0\0\0", 1))
    assert reasons(found) == ["packets of link type 42, which is not known (4)"]


@pytest.mark.parametrize("write_file", [pcap, pcapng])
def test_a_file_cut_anywhere_gives_what_is_before_and_never_fails(write_file: Any) -> None:
    wire = Wire(7702)
    data = write_file([*wire.open(), wire.send(0, HELLO), wire.send(0, WORLD), wire.send(0, AGAIN)])
    whole = payloads(data, find(data))
    for end in range(4, len(data)):
        found = find(data[:end])
        shown = payloads(data[:end], found)
        assert shown == whole[: len(shown)]


@given(st.binary(max_size=300), st.integers(0, 400))
@settings(derandomize=True, database=None, deadline=None, max_examples=200)
def test_garbage_among_packets_never_fails(garbage: bytes, at: int) -> None:
    wire = Wire(7702)
    for write_file in (pcap, pcapng):
        data = write_file([*wire.open(), wire.send(0, HELLO), wire.send(0, WORLD)])
        broken = data[: 24 + at] + garbage + data[24 + at + len(garbage) :]
        rows(broken, find(broken, "all"))
