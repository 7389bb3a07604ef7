"""URLs of brokers, TLS and Unix sockets."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import wirelake
from tests.client.brokers import Broker, Proxy
from wirelake.client.url import dialect_urls, parse
from wirelake.dialects import DIALECTS
from wirelake.errors import ConfigError, RefusedError


@pytest.mark.parametrize(
    ("url", "dialect", "host", "port"),
    [
        ("kobold://", "kobold-3", "127.0.0.1", 7702),
        ("kobold-1://example.org", "kobold-1", "example.org", 7702),
        ("boson://h", "boson-binary", "h", 7701),
        ("boson-text://h/", "boson-text", "h", 7701),
        ("tmq://h", "tmq-1.01", "h", 22200),
        ("tmq-1.00://h:1", "tmq-1.00", "h", 1),
        ("mfp://[::1]", "mfp-1", "::1", 7777),
        ("MFP-1://h", "mfp-1", "h", 7777),
    ],
)
def test_a_url_names_a_dialect_and_a_place(url: str, dialect: str, host: str, port: int) -> None:
    place = parse(url)
    assert (place.dialect, place.host, place.port) == (dialect, host, port)


def test_a_url_may_name_several_hosts() -> None:
    place = parse("kobold-3://ann:secret@a:1,b,[::1]:3")
    assert place.hosts == (("a", 1), ("b", 7702), ("::1", 3))
    assert (place.client_id, place.token) == ("ann", "secret")
    for wrong in ("kobold-3://a,b:0", "kobold-3://a,b/path", "ws://a,b/v1/wire/kobold-3"):
        with pytest.raises(ConfigError):
            parse(wrong)


def test_identity_is_in_the_url_or_beside_it() -> None:
    place = parse("kobold-2://al%20ice:s%3Acret@h:1")
    assert (place.client_id, place.token) == ("al ice", "s:cret")
    place = parse("kobold-2://alice:secret@h", client_id="bob", token="other")
    assert (place.client_id, place.token) == ("bob", "other")
    assert parse("boson-text://:secret@h").token == "secret"


def test_a_token_is_never_shown() -> None:
    place = parse("kobold-2+tls://alice:secret@[::1]:9")
    assert str(place) == "kobold-2+tls://[::1]:9"
    assert "secret" not in repr(place) + repr(wirelake.connect("tmq://a:secret@h"))
    with pytest.raises(ConfigError) as error:
        parse("kobold-2://alice:secret@h/path")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "h:1",
        "auto://h",
        "kobold-4://h",
        "kobold-3+zip://h",
        "kobold-3+tls+tls://h",
        "kobold-3://h:0",
        "kobold-3://h:99999",
        "kobold-3://h:x",
        "kobold-3://[::1",
        "kobold-3://h/path",
        "kobold-3://h?a=b",
        "kobold-3://h#a",
        "kobold-3+unix://h/path",
        "kobold-3+unix://",
        "boson-text://alice@h",
        "mfp://abc@h",
        "mfp://alice:" + "x" * 30 + "@h",
        "tmq://al%0Dice@h",
    ],
)
def test_a_bad_url_is_an_error_at_once(url: str) -> None:
    with pytest.raises(ConfigError):
        wirelake.connect(url)
    with pytest.raises(ConfigError):
        wirelake.connect_sync(url)


def test_bad_options_are_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="timeout"):
        wirelake.connect("kobold://h", timeout=0)
    with pytest.raises(ConfigError, match="ca: "):
        wirelake.connect("kobold+tls://h", ca=tmp_path / "none.pem")
    with pytest.raises(ConfigError, match="key: "):
        wirelake.connect("kobold+tls://h", key=tmp_path / "none.pem")
    with pytest.raises(ConfigError, match=r"kobold-3\+tls"):
        wirelake.connect("kobold://h", ca=tmp_path / "none.pem")
    with pytest.raises(TypeError, match="colour"):
        wirelake.connect("kobold://h", colour="red")  # type: ignore[call-arg]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of localhost that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        f"-subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout {key} -out {cert}"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    return cert, key


@pytest.fixture
async def tls_port(broker: Broker, certificate: tuple[Path, Path]) -> AsyncIterator[int]:
    """The port of a broker behind TLS that wants a certificate of its clients."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificate[0])
    context.load_cert_chain(*certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    proxy = Proxy(broker.port)
    await proxy.start(tls=context)
    yield proxy.port
    await proxy.stop()


async def test_keys_and_certificates_may_come_from_the_environment(
    tls_port: int, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = certificate
    for name, path in (("CA", cert), ("CERT", cert), ("KEY", key)):
        monkeypatch.setenv(f"WIRELAKE_{name}", str(path))
    async with wirelake.connect(f"kobold+tls://localhost:{tls_port}") as client:
        await client.publish("a", b"x", ack=True)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_client_speaks_tls(
    tls_port: int, certificate: tuple[Path, Path], dialect: str
) -> None:
    cert, key = certificate
    url = f"{dialect}+tls://localhost:{tls_port}"
    async with (
        wirelake.connect(url, ca=cert, cert=cert, key=key) as client,
        client.subscribe("a") as messages,
    ):
        await client.publish("a", b"x")
        assert (await messages.receive(60)).payload == b"x"
    with pytest.raises(RefusedError, match="certificate"):
        await wirelake.connect(url)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_client_speaks_to_a_unix_socket(
    broker: Broker, tmp_path: Path, dialect: str
) -> None:
    path = tmp_path / "broker.sock"
    proxy = Proxy(broker.port)
    await proxy.start(path=path)
    async with (
        wirelake.connect(f"{dialect}+unix://{path}") as client,
        client.subscribe("a") as messages,
    ):
        await client.publish("a", b"x")
        assert (await messages.receive(60)).payload == b"x"
    await proxy.stop()


@pytest.mark.parametrize(
    ("urls", "spoken"),
    [
        (["auto://host"], {name: f"{name}://host:7700" for name in DIALECTS}),
        (["auto+tls://host:1"], {name: f"{name}+tls://host:1" for name in DIALECTS}),
        (["auto+unix:///a"], {name: f"{name}+unix:///a" for name in DIALECTS}),
        (
            ["tmq://h:1", "tmq-1.01://i"],
            {"tmq-1.00": "tmq-1.00://h:1", "tmq-1.01": "tmq-1.01://h:1"},
        ),
        (["mfp-1://h", "boson-text://i"], {"mfp-1": "mfp-1://h", "boson-text": "boson-text://i"}),
    ],
)
def test_listeners_and_dialects_are_urls_of_dialects(
    urls: list[str], spoken: dict[str, str]
) -> None:
    assert dialect_urls(urls) == spoken


@pytest.mark.parametrize("url", ["http://host", "host", "auto://host:x", "kobold://host/path", ""])
def test_what_is_no_listener_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        dialect_urls([url])
