"""A described dialect is spoken by the broker, the client, HTTP and the commands like any other."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

import wirelake
from tests.broker.desk import Client, Desk, ops
from tests.dialects.described import METER, SENSOR, dialect
from tests.dialects.test_described import written
from wirelake.config import read_settings
from wirelake.dialects import DIALECTS
from wirelake.dialects.codec import clashes, detect
from wirelake.dialects.framed.description import PRESETS, dialect_of, parse_description
from wirelake.errors import ConfigError, ProtocolError, RefusedError
from wirelake.http import inspection
from wirelake.message import Message, Op, Parameters
from wirelake.testing import Broker

LINES = """
name = "screen-1"
address = "keys/{key}"
subscribe = ["screen/#"]
[frame]
by = "delimiter"
delimiter = "\\n"
[[fields]]
name = "key"
until = " "
[payload]
after = "key"
"""


@pytest.fixture(autouse=True)
def spoken() -> Iterator[None]:
    """The described dialects of these tests."""
    with DIALECTS.also(dialect(METER), dialect(SENSOR)):
        yield


def device(desk: Desk, name: str) -> Client:
    """A connection that says nothing at first, as devices do."""
    return Client(desk, name)


def test_publishes_reach_subscribers_of_other_dialects_and_are_answered() -> None:
    desk = Desk()
    reader = desk.client("kobold-3", "reader")
    reader.subscribe("plant/#")
    reader.take()
    sensor = device(desk, "sensor-2")
    sensor.say(written("sensor-2", Message("plant/1/513", b"21.5", ticket=77)))
    (got,) = reader.take()
    assert (got.address, got.payload) == ("plant/1/513", b"21.5")
    assert [(one.op, one.ticket) for one in sensor.take()] == [(Op.OK, 77)]


def test_a_refused_publish_is_answered_as_described() -> None:
    desk = Desk()
    sensor = device(desk, "meter-1")
    sensor.say(written("meter-1", Message("a//+/b", b"x", ticket=5)))
    (answer,) = sensor.take()
    assert (answer.op, answer.ticket) == (Op.ERROR, 5)
    assert answer.payload


def test_ops_subscribe_and_what_is_delivered_is_written_by_the_same_description() -> None:
    desk = Desk()
    meter = device(desk, "meter-1")
    meter.say(written("meter-1", Message("house/#", op=Op.SUBSCRIBE, ticket=3)))
    assert [(one.op, one.ticket) for one in meter.take()] == [(Op.OK, 3)]
    other = desk.client("kobold-3", "other")
    headers = {"temperature": "21.5", "offset": "-7", "unknown": "x"}
    said = Message("house/temp", b"warm", headers=headers, priority=1, ttl=9000)
    other.send(said)
    (got,) = meter.take()
    assert (got.address, got.payload, got.priority, got.ttl) == ("house/temp", b"warm", 1, 9000)
    assert got.headers == {"temperature": "21.5", "offset": "-7"}
    meter.say(written("meter-1", Message("house/#", op=Op.UNSUBSCRIBE, ticket=4)))
    meter.take()
    other.send(said)
    assert meter.take() == []
    meter.say(written("meter-1", Message(op=Op.PING, payload=b"?", ticket=9)))
    assert ops(meter.take()) == ["pong"]


def test_numbers_of_a_connection_are_no_ids_so_queues_keep_every_message() -> None:
    # decision 77
    desk = Desk()
    consumer = desk.client("kobold-3", "consumer")
    consumer.send(Message("jobs", op=Op.DEQUEUE, id="d", parameters=Parameters(count=1)))
    consumer.take()
    meter = device(desk, "meter-1")
    for payload in (b"first", b"second"):  # the same number, as a small counter comes round
        meter.say(written("meter-1", Message("jobs", payload, ticket=1)))
        assert ops(meter.take()) == ["ok"]
    consumer.send(Message("jobs", op=Op.DEQUEUE, id="e", parameters=Parameters(count=9)))
    assert [one.payload for one in consumer.take() if one.op == Op.DELIVER] == [b"first", b"second"]


def test_connections_have_the_subscriptions_of_the_description() -> None:
    with DIALECTS.also(dialect(LINES)):
        desk = Desk()
        screen = device(desk, "screen-1")
        reader = desk.client("kobold-3", "reader")
        reader.subscribe("keys/+")
        reader.take()
        screen.say(b"F1 pressed\n")
        assert [(one.address, one.payload) for one in reader.take()] == [("keys/F1", b"pressed")]
        reader.send(Message("screen/top", b"hello"))
        assert screen.received == b""  # `screen/top` is no address of its frames
        reader.send(Message("keys/F2", b"x"))
    with DIALECTS.also(dialect(LINES.replace("keys/{key}", "keys").replace(', "screen/#"', ""))):
        desk = Desk()
        screen = device(desk, "screen-1")
        desk.client("kobold-3", "writer").send(Message("screen/top", b"hello"))
        assert bytes(screen.received) == b" hello\n"


def test_a_hostile_frame_ends_its_connection_and_nothing_else() -> None:
    desk = Desk()
    reader = desk.client("kobold-3", "reader")
    reader.subscribe("plant/#")
    reader.take()
    good = written("sensor-2", Message("plant/1/2", b"kept", ticket=1))
    for bad in (b"\xa5\x5a\xff\xff", b"garbage", good[:-3] + b"\0\0\0", b"\xa5\x5a\0\0"):
        sensor = device(desk, "sensor-2")
        sensor.say(good + bad + b"\0" * 70000)
        assert not sensor.is_open
        assert [one.payload for one in reader.take()] == [b"kept"]


# Detection


def test_auto_tells_described_dialects_by_their_magic_behind_the_built_in_ones() -> None:
    assert detect(b"\xaa\x55\0\0") == "meter-1"
    assert detect(b"\xaa") is None
    assert detect(b"\xa5\x5a\0") == "sensor-2"
    with pytest.raises(ProtocolError):
        detect(b"\xaa\x54")
    with pytest.raises(ProtocolError):
        detect(b"anything", "meter")  # a family may have several
    assert detect(b"anything", "sensor-2") == "sensor-2"


def test_a_dialect_whose_magic_clashes_is_not_on_auto() -> None:
    # decision 78
    other = METER.replace("meter-1", "other-1").replace('"meter"', '"other"')
    with DIALECTS.also(dialect(other)):
        assert clashes("other-1") == ["meter-1"]
        assert clashes("meter-1") == []
        assert detect(b"\xaa\x55\0\0") == "meter-1"
        assert detect(b"\xaa\x55\0\0", "other") == "other-1"
    boson = METER.replace("0xAA55", "4|0|").replace("at = 2, width", "at = 4, width")
    boson = boson.replace("meter-1", "near-1").replace('"meter"', '"near"')
    with DIALECTS.also(dialect(boson)):
        assert clashes("near-1") == ["boson-text"]


# The whole broker


def test_the_client_speaks_it() -> None:
    listen = ("auto://127.0.0.1:0", "meter://127.0.0.1:7790", "sensor-2://127.0.0.1:7791")
    with Broker(listen=listen) as broker:
        url = broker.url("meter-1")
        with wirelake.connect_sync(url) as client, client.subscribe("house/#") as inbox:
            client.publish("house/temp", b"21.5", ack=True, headers={"offset": "4"})
            got = next(iter(inbox))
            assert (got.address, got.payload) == ("house/temp", b"21.5")
            assert got.headers["offset"] == "4"
            client.ping()
        with wirelake.connect_sync(broker.url("sensor-2", listener="auto")) as client:
            client.publish("plant/1/2", b"x", ack=True)
            with pytest.raises(RefusedError, match=r"its description has no ops\.subscribe"):
                client.subscribe("plant/#").__enter__()
            with pytest.raises(RefusedError, match="cannot say the address"):
                client.publish("elsewhere", b"x")


def test_tokens_are_shown_in_frames_that_the_description_has() -> None:
    from wirelake.config import TokenSettings, hash_token

    token = "s" * 20
    entry = TokenSettings(
        name="m", hash=hash_token(token), publish=("house/#",), subscribe=("house/#",)
    )
    with Broker(listen=("meter://127.0.0.1:7790",), tokens=(entry,)) as broker:
        with wirelake.connect_sync(broker.url("meter-1"), token=token) as client:
            client.publish("house/temp", b"1", ack=True)
        with (
            wirelake.connect_sync(broker.url("meter-1")) as client,
            pytest.raises(RefusedError),
        ):
            client.publish("house/temp", b"1", ack=True)


def test_what_is_accepted_is_in_the_log_with_its_fields_as_headers(tmp_path: Path) -> None:
    from urllib.request import urlopen

    import pyarrow.ipc

    with Broker(listen=("meter://127.0.0.1:1",), data=tmp_path / "data", http=True) as broker:
        with wirelake.connect_sync(broker.url("meter-1")) as client:
            client.publish("house/temp", b"1", ack=True, headers={"temperature": "21.25"})
        rows = []
        for partition in range(4):
            with urlopen(f"{broker.http_url}/v1/log/{partition}?from=0") as answer:
                rows += pyarrow.ipc.open_stream(answer.read()).read_all().to_pylist()
        (row,) = rows
        assert (row["address"], row["dialect"], row["payload"]) == ("house/temp", "meter-1", b"1")
        assert dict(row["headers"])["temperature"] == "21.25"


def test_the_inspector_of_the_console_shows_its_fields() -> None:
    message = Message("house/temp", b"x", headers={"offset": "-7", "temperature": "1.5"}, ttl=9)
    told = inspection.inspect(written("meter-1", message))
    assert told["dialect"] == "meter-1"
    fields = {one["name"]: one["value"] for one in told["messages"][0]["fields"]}
    assert (fields["address"], fields["ttl"]) == ("house/temp", 9)
    assert fields["headers"] == {"offset": "-7", "temperature": "1.5"}
    shown = {one["dialect"]: one for one in inspection.translations(message)}
    assert shown["meter-1"]["lost"] == []
    assert shown["sensor-2"]["refused"] == "address"


@pytest.mark.slow
def test_spark_decodes_captures_of_it(tmp_path: Path) -> None:
    file, capture, table = tmp_path / "s.toml", tmp_path / "capture.bin", tmp_path / "table"
    file.write_text(SENSOR)
    frames = written("sensor-2", *(Message(f"plant/1/{k}", b"x") for k in range(4)))
    capture.write_bytes(frames * 500 + b"garbage")
    command = [sys.executable, "-m", "wirelake", "lake", "decode", str(capture), "--json"]
    command += ["--dialect", str(file), "--table", str(table)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    rows = DeltaTable(str(table)).to_pyarrow_table(columns=["dialect", "address"])
    assert rows.num_rows == 2000
    assert set(rows["dialect"].to_pylist()) == {"sensor-2"}
    assert len(set(rows["address"].to_pylist())) == 4
    errors = DeltaTable(f"{table}_errors").to_pyarrow_table()
    assert errors["offset"].to_pylist() == [len(frames) * 500]


def test_the_configuration_names_descriptions_from_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "screen.toml").write_text("port = 7799\n" + LINES)
    config = tmp_path / "wirelake.toml"
    config.write_text('[[dialects]]\nfile = "screen.toml"\n')
    settings = read_settings(config)
    assert "screen-1://127.0.0.1:7799" in settings.listen
    assert read_settings(config) == settings  # as SIGHUP does
    (tmp_path / "screen.toml").write_text("port = 7799\n" + LINES.replace("screen/#", "x/#"))
    with pytest.raises(ConfigError, match="has changed: that needs a restart"):
        read_settings(config)
    config.write_text('[[dialects]]\nfile = "nowhere.toml"\n')
    with pytest.raises(ConfigError, match="No such file"):
        read_settings(config)


def test_a_silent_connection_gets_what_the_description_subscribes_to() -> None:
    screen = LINES.replace("keys/{key}", "keys")
    with (
        DIALECTS.also(dialect(screen)),
        Broker(listen=("screen-1://127.0.0.1:1", "kobold://127.0.0.1:1")) as broker,
        socket.create_connection(("127.0.0.1", broker.listeners[0].port), timeout=60) as wire,
        wirelake.connect_sync(broker.url("kobold-3")) as client,
    ):
        while not broker.state()["subscriptions"]:
            time.sleep(0.01)
        client.publish("screen/top", b"hello", ack=True)
        assert wire.recv(100) == b" hello\n"


@pytest.mark.skipif(shutil.which("logger") is None, reason="no logger(1)")
@pytest.mark.parametrize("form", ["--rfc5424", "--rfc3164"])
@pytest.mark.parametrize("framing", ["syslog-octets", "syslog-lines"])
def test_logger_speaks_syslog_in_both_framings(framing: str, form: str) -> None:
    counted = ["--octet-count"] * (framing == "syslog-octets")
    preset = dialect_of(parse_description(PRESETS[framing].read_text(encoding="utf-8")))
    with (
        DIALECTS.also(preset),
        Broker(listen=(f"{framing}://127.0.0.1:0", "auto://127.0.0.1:0")) as broker,
        wirelake.connect_sync(broker.url("kobold-3")) as client,
        client.subscribe("syslog") as messages,
    ):
        port = broker.listeners[0].port
        where = ["--tcp", "--server", "127.0.0.1", "--port", str(port)]
        said = ["--priority", "local3.warning", "--tag", "plant", "the pump stands still"]
        subprocess.run(["logger", *where, *counted, form, *said], check=True, timeout=60)
        message = next(iter(messages))
    assert message.headers["pri"] == "156"  # facility 19, severity 4
    assert message.payload.startswith(b"<156>")
    assert message.payload.endswith(b"the pump stands still")


def test_a_device_over_a_socket_gets_its_answer_when_the_message_is_durable(
    tmp_path: Path,
) -> None:
    with Broker(listen=("sensor-2://127.0.0.1:1",), data=tmp_path / "data") as broker:
        port = broker.listeners[0].port
        with socket.create_connection(("127.0.0.1", port), timeout=60) as wire:
            frames = written("sensor-2", *(Message("plant/1/2", b"x", ticket=k) for k in range(50)))
            for at in range(0, len(frames), 7):
                wire.sendall(frames[at : at + 7])
            answers = b""
            while len(answers) < 150:
                answers += wire.recv(1000)
        assert answers == b"".join(b"\x06" + k.to_bytes(2, "big") for k in range(50))
