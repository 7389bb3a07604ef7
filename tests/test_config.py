"""Settings: what is accepted, and what is said of what is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from wirelake.config import (
    TOKEN_LENGTH,
    Listener,
    Settings,
    TlsSettings,
    TokenSettings,
    hash_token,
    new_token,
    read_settings,
)
from wirelake.errors import ConfigError

HASH = hash_token("secret")


def read(folder: Path, text: str) -> Settings:
    """The settings in a file with this text."""
    file = folder / "wirelake.toml"
    file.write_text(text, encoding="utf-8")
    return read_settings(file)


def test_an_empty_file_has_the_defaults_of_the_specification(tmp_path: Path) -> None:
    settings = read(tmp_path, "")
    assert settings == Settings()
    assert [str(listener) for listener in settings.listeners] == [
        "auto://127.0.0.1:7700",
        "boson://127.0.0.1:7701",
        "mfp://127.0.0.1:7777",
        "kobold://127.0.0.1:7702",
        "tmq://127.0.0.1:22200",
        "mqtt://127.0.0.1:1883",
    ]
    assert settings.limits.message == settings.limits.sequence == 64 << 20
    assert settings.limits.headers == 64 << 10
    assert (settings.flow.outbox, settings.flow.patience, settings.flow.window) == (8 << 20, 2, 30)
    assert (settings.handshake_timeout, settings.request_timeout) == (30, 30)
    assert settings.mfp.oversize == "drop"


def test_every_setting_can_be_set(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        f"""
        listen = ["auto://127.0.0.1:1", "kobold+tls://0.0.0.0:2"]
        insecure = true
        handshake_timeout = 5
        request_timeout = 0.5
        [limits]
        message = 2048
        headers = 512
        sequence = 4096
        [flow]
        outbox = 100_000
        patience = 1
        window = 10.5
        policies = {{ "sensors/#" = "drop", "orders/+" = "pause", "#" = "disconnect" }}
        [mfp]
        oversize = "split"
        [tls]
        cert = "server.pem"
        key = "/keys/server.key"
        client_ca = "ca.pem"
        require_client_cert = true
        [[tokens]]
        name = "alice"
        hash = "{HASH}"
        publish = ["a/#"]
        subscribe = ["b/+"]
        serve = ["c"]
        store = ["d/#"]
        admin = true
        """,
    )
    assert settings.insecure
    assert (settings.handshake_timeout, settings.request_timeout) == (5, 0.5)
    assert settings.limits.message == 2048
    assert list(settings.flow.policies.items()) == [
        ("sensors/#", "drop"),
        ("orders/+", "pause"),
        ("#", "disconnect"),
    ]
    assert settings.mfp.oversize == "split"
    assert settings.tls == TlsSettings(
        cert=str(tmp_path / "server.pem"),
        key="/keys/server.key",
        client_ca=str(tmp_path / "ca.pem"),
        require_client_cert=True,
    )
    assert settings.tokens == (
        TokenSettings(
            name="alice",
            hash=HASH,
            publish=("a/#",),
            subscribe=("b/+",),
            serve=("c",),
            store=("d/#",),
            admin=True,
        ),
    )


@pytest.mark.parametrize(
    ("text", "setting", "reason"),
    [
        ("listne = []", "listne", "there is no such setting"),
        ("[flow]\ninbox = 1", "flow.inbox", "there is no such setting"),
        ("[flow]\noutbox = 'much'", "flow.outbox", "expected `int`, got `str`"),
        ("[flow]\noutbox = 1", "flow.outbox", "expected `int` >= 65536"),
        ("[flow]\npatience = 0", "flow.patience", "expected `float` > 0.0"),
        ("flow = 1", "flow", "expected `object`, got `int`"),
        ("[flow.policies]\n'a/#' = 'lose'", "flow.policies[...]", "invalid enum value 'lose'"),
        ("[mfp]\noversize = 'cut'", "mfp.oversize", "invalid enum value 'cut'"),
        ("[tls]\ncert = 'c'", "tls.key", "this setting is missing"),
        (
            "[tls]\ncert = 'c'\nkey = 'k'\nrequire_client_cert = true",
            "tls",
            "require_client_cert needs client_ca, to check them against",
        ),
        ("[[tokens]]\nname = 'a'", "tokens[0].hash", "this setting is missing"),
        (
            "[[tokens]]\nname = 'a'\nhash = 'secret'",
            "tokens[0].hash",
            "expected `str` matching regex '^sha256:[0-9a-f]{64}$'",
        ),
        (
            f"[[tokens]]\nname = 'a'\nhash = '{HASH}'\n" * 2,
            "tokens",
            "two have the name a",
        ),
        (
            f"[[tokens]]\nname = 'a'\nhash = '{HASH}'\n[[tokens]]\nname = 'b'\nhash = '{HASH}'\n",
            "tokens",
            f"two have the hash {HASH}",
        ),
    ],
)
def test_a_wrong_setting_is_named_with_its_file(
    tmp_path: Path, text: str, setting: str, reason: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert caught.value.setting == setting
    assert caught.value.reason == f"{reason} ({tmp_path / 'wirelake.toml'})"


@pytest.mark.parametrize("text", ["listen = [", "= 1", "a = 1\na = 2"])
def test_a_file_that_is_not_toml_is_named_with_the_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert caught.value.setting == str(tmp_path / "wirelake.toml")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_text_or_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml: No such file or directory"):
        read_settings(tmp_path / "absent.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"binary\.toml: .*utf-8"):
        read_settings(tmp_path / "binary.toml")


@pytest.mark.parametrize(
    ("url", "listener"),
    [
        ("auto://127.0.0.1:7700", Listener("auto", "127.0.0.1", 7700)),
        ("auto://0.0.0.0:0", Listener("auto", "0.0.0.0", 0)),
        ("mfp://", Listener("mfp", "127.0.0.1", 7777)),
        ("tmq://broker.example", Listener("tmq", "broker.example", 22200)),
        ("boson+tls://[::1]:5", Listener("boson", "::1", 5, tls=True)),
        ("kobold+unix:///run/a%20b.sock", Listener("kobold", "", path="/run/a b.sock")),
    ],
)
def test_a_listener_is_read_from_its_url(url: str, listener: Listener) -> None:
    assert Listener.parse(url) == listener
    assert Listener.parse(str(listener).replace(" ", "%20")) == listener


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:7700",
        "http://127.0.0.1:80",
        "kobold-2://127.0.0.1:7702",
        "kobold+udp://127.0.0.1:7702",
        "kobold+tls+unix:///x",
        "auto://127.0.0.1:port",
        "auto://127.0.0.1:70000",
        "auto://[::1:7700",
        "auto://me:secret@127.0.0.1:7700",
        "auto://127.0.0.1:7700/path",
        "auto://127.0.0.1:7700?x=1",
        "auto+unix://relative.sock",
        "auto+unix://",
    ],
)
def test_what_is_no_listener_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"listen: {url}: ")):
        Listener.parse(url)


@pytest.mark.parametrize(
    "url", ["auto://127.0.0.9:1", "auto+tls://[::1]:1", "auto://localhost", "auto+unix:///x"]
)
def test_without_tokens_local_listeners_are_allowed(url: str) -> None:
    assert Settings(listen=(url,)).listeners == [Listener.parse(url)]


@pytest.mark.parametrize(
    "url", ["auto://0.0.0.0:1", "auto+tls://[::]:1", "auto://10.0.0.1", "auto://broker.example"]
)
def test_without_tokens_others_are_not_unless_insecure_is_said(url: str) -> None:
    with pytest.raises(ConfigError, match=r"no tokens are configured; .*--insecure"):
        _ = Settings(listen=("auto://127.0.0.1:1", url)).listeners
    assert len(Settings(listen=(url,), insecure=True).listeners) == 1
    token = TokenSettings(name="a", hash=HASH)
    assert len(Settings(listen=(url,), tokens=(token,)).listeners) == 1


def test_nothing_to_listen_at_is_an_error() -> None:
    with pytest.raises(ConfigError, match="nothing to listen at"):
        _ = Settings(listen=()).listeners


def test_tokens_fit_into_mfp_and_cannot_be_guessed() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(re.fullmatch("[A-Za-z0-9]{20}", token) for token in tokens)
    assert 62**TOKEN_LENGTH > 2**100
