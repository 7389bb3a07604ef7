"""The journal on real nats-servers: kills, lost answers, races, damage, standbys, purges."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
import shutil
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import nkeys
import pytest
from zlib_ng.zlib_ng import crc32

from tests.conftest import Certificates
from tests.journal.samples import Outcomes, State, commit, keys, payloads, some_rows
from tests.journal.servers import PATIENCE, Servers, wait_for
from wirelake.errors import ConfigError, EngineError
from wirelake.journal.contract import Harm, Needed, Outcome, Recovered, Space
from wirelake.journal.jetstream import JetStreamJournal, StreamSettings
from wirelake.journal.record import End, Record, Type, checkpoint, encode_commit
from wirelake.journal.retention import Rule
from wirelake.journal.streams import Access, Envelope, Stored, Stream, split
from wirelake.testing import Proxy

#: nats-py leaves a socket behind where a server was killed or stands still.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

Make = Callable[..., JetStreamJournal]
T = TypeVar("T")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """One server."""
    with Servers(tmp_path_factory.mktemp("one")) as servers:
        yield servers


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Three servers that are a cluster."""
    with Servers(tmp_path_factory.mktemp("three"), 3) as servers:
        yield servers


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Make]:
    """Makes journals, one for each node, over the streams of this test."""
    journals: list[JetStreamJournal] = []
    prefix = f"T{secrets.token_hex(4)}"

    def make(
        servers: Servers, node: str = "a", *, urls: tuple[str, ...] = (), **settings: object
    ) -> JetStreamJournal:
        given = {"partitions": 2, "replicas": servers.count, "tidy_every": 0, **settings}
        journal = JetStreamJournal(
            tmp_path / node,
            Access(servers=urls or servers.urls),
            StreamSettings(prefix=prefix, **given),  # type: ignore[arg-type]  # of a test
            node=node,
        )
        journals.append(journal)
        return journal

    yield make
    for journal in journals:
        journal.close()


def stream_of(journal: JetStreamJournal, partition: int = 0) -> str:
    return f"{journal._settings.prefix}_{partition}"


def keys_of(journal: JetStreamJournal, partition: int = 0) -> dict[bytes, bytes]:
    """The keys of a partition that is taken up now."""
    return State.of(journal.recover(partition)).keys


def message_count(journal: JetStreamJournal, partition: int = 0) -> tuple[int, int]:
    """The first and the last sequence of a partition's stream."""
    state = journal._wait(journal._all[partition].stream.state())
    return state.first, state.last


# Setting up


def test_streams_are_made_and_found_again(three: Servers, made: Make) -> None:
    first = made(three, monitors=three.monitors)
    assert (first.partitions, first.weak) == (2, "")
    second = made(three, "b", partitions=None)
    assert (second.partitions, second.id) == (2, first.id)
    with pytest.raises(ConfigError, match="the cluster was made with 2 partitions"):
        made(three, "c", partitions=3)


def test_what_is_weak_is_told_in_one_line(one: Servers, made: Make, tmp_path: Path) -> None:
    assert made(one, monitors=one.monitors).weak == "2 streams have R1"
    weak = made(one, "b", replicas=3).weak
    assert weak.startswith("2 streams have R1 instead of R3; ")
    assert "sync every write" in weak
    with Servers(tmp_path / "lazy", sync='"2m"') as lazy:
        weak = made(lazy, "c", monitors=lazy.monitors).weak
    assert weak == f"2 streams have R1; {lazy.monitors[0]} syncs every 120 s"


def test_replicas_that_the_servers_cannot_give_are_refused(one: Servers, made: Make) -> None:
    with pytest.raises(ConfigError, match=r"cannot be made: .*replicas"):
        made(one, replicas=3)


def test_a_stream_that_would_lose_data_is_refused(one: Servers, made: Make) -> None:
    journal = made(one)
    stream = journal._all[1].stream
    config = journal._wait(stream.config())
    assert config is not None
    journal._wait(stream._done("STREAM.UPDATE", {**config, "max_age": 3_600_000_000_000}))
    with pytest.raises(ConfigError, match="max_age is 3600000000000, and has to be 0"):
        made(one, "b")


@pytest.mark.parametrize("prefix", ["", "a.b", "a b", "*", "x" * 33])
def test_a_prefix_that_no_stream_can_have_is_refused(
    one: Servers, prefix: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="prefix: it has 1 to 32 letters"):
        JetStreamJournal(tmp_path, Access(servers=one.urls), StreamSettings(prefix=prefix))


def test_a_node_needs_no_more_rights_than_the_page_says(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text(encoding="utf-8")
    permissions = page.partition("```conf\n")[2].partition("```")[0]
    assert permissions.strip().startswith("permissions {")
    user = f"authorization {{ users: [{{ user: u, password: p, {permissions} }}] }}"
    with Servers(tmp_path / "nats", extra=user) as servers:
        access = Access(servers=servers.urls, user="u", password="p")
        settings = StreamSettings(partitions=1, replicas=1, tidy_every=0)
        owner = JetStreamJournal(tmp_path / "a", access, settings, node="a")
        standby = JetStreamJournal(tmp_path / "b", access, settings, node="b")
        owner.recover(0)
        standby.follow(0)
        fill(owner, 10)
        level(standby, message_count(owner)[1])
        commit(owner, 0, [checkpoint(owner.positions()[0].number)])
        owner.keep(0, Needed(offset=10))
        owner.retain([Rule("#", max_age=10.0)])
        owner.tidy(time.time() + 60)
        owner.tidy(time.time() + 60)
        assert message_count(owner)[0] > 1
        standby.recover(0)
        assert commit(owner, 0, [keys({"a": b"1"})]) is Outcome.LOST
        for journal in (owner, standby):
            journal.close()
        log = (tmp_path / "nats" / "n0.log").read_text()
        assert "Permissions Violation" not in log


def test_a_server_that_does_not_answer_is_an_error_to_retry(one: Servers, made: Make) -> None:
    with pytest.raises(EngineError, match=r"no NATS server at nats://127\.0\.0\.1:1:") as raised:
        made(one, urls=("nats://127.0.0.1:1",))
    assert raised.value.retriable


def test_who_waits_for_a_server_is_told_when_the_journal_is_closed(
    one: Servers, made: Make
) -> None:
    journal = made(one)
    told: list[Exception] = []

    def recover() -> None:
        try:
            journal.recover(0)
        except EngineError as error:
            told.append(error)

    one.freeze(0)
    try:
        waiting = threading.Thread(target=recover, daemon=True)
        waiting.start()
        time.sleep(0.3)
        assert waiting.is_alive()
        journal.close()
        waiting.join(5)
        assert not waiting.is_alive(), "its thread waits for ever"
        assert "closed" in str(told[0])
    finally:
        one.thaw(0)


@pytest.mark.parametrize(
    ("extra", "given"),
    [
        ("authorization { user: u, password: p }", {"user": "u", "password": "p"}),
        ("authorization { token: t }", {"token": "t"}),
    ],
)
def test_a_node_logs_in(extra: str, given: dict[str, str], tmp_path: Path) -> None:
    settings = StreamSettings(partitions=1, replicas=1)
    with Servers(tmp_path / "nats", extra=extra) as servers:
        journal = JetStreamJournal(tmp_path, Access(servers=servers.urls, **given), settings)
        assert list(journal.recover(0).records) == []
        journal.close()
        with pytest.raises(EngineError, match=r"(?i)authorization"):
            JetStreamJournal(tmp_path, Access(servers=servers.urls), settings)


def test_a_node_speaks_tls_and_shows_its_certificate(
    certificates: Certificates, tmp_path: Path
) -> None:
    folder = certificates.folder
    settings = StreamSettings(partitions=1, replicas=1)
    tls = f'cert_file: "{folder}/server.pem", key_file: "{folder}/server.key"'
    with Servers(
        tmp_path / "nats", extra=f'tls {{ {tls}, ca_file: "{folder}/ca.pem", verify: true }}'
    ) as servers:
        url = f"tls://localhost:{servers.ports[0]}"
        mine = {"cert": str(folder / "alice.pem"), "key": str(folder / "alice.key")}
        access = Access(servers=(url,), ca=str(folder / "ca.pem"), **mine)
        journal = JetStreamJournal(tmp_path, access, settings)
        journal.recover(0)
        assert commit(journal, 0, [keys({"a": b"1"})]) is Outcome.DURABLE
        journal.close()
        with pytest.raises(EngineError, match="no NATS server"):
            JetStreamJournal(tmp_path, Access(servers=(url,)), settings)
    with pytest.raises(ConfigError, match="the certificates cannot be read"):
        JetStreamJournal(tmp_path, Access(servers=(url,), ca="absent.pem"), settings)


def claims(key: nkeys.KeyPair, issuer: nkeys.KeyPair, kind: str, **more: object) -> str:
    """A JWT as NATS has them, by which an issuer says what the holder of a key may do."""

    def packed(value: bytes) -> str:
        return base64.urlsafe_b64encode(value).rstrip(b"=").decode()

    body = {
        "jti": secrets.token_hex(8),
        "iat": int(time.time()),
        "iss": issuer.public_key.decode(),
        "sub": key.public_key.decode(),
        "name": kind,
        "nats": {"type": kind, "version": 2, **more},
    }
    head = {"typ": "JWT", "alg": "ed25519-nkey"}
    text = f"{packed(json.dumps(head).encode())}.{packed(json.dumps(body).encode())}"
    return f"{text}.{packed(issuer.sign(text.encode()))}"


def key_of(kind: int) -> nkeys.KeyPair:
    """A new key of an operator, an account or a user."""
    return nkeys.from_seed(nkeys.encode_seed(secrets.token_bytes(32), kind))


def test_a_node_logs_in_with_a_credentials_file(tmp_path: Path) -> None:
    operator, system, account, user = map(
        key_of,
        (
            nkeys.PREFIX_BYTE_OPERATOR,
            nkeys.PREFIX_BYTE_ACCOUNT,
            nkeys.PREFIX_BYTE_ACCOUNT,
            nkeys.PREFIX_BYTE_USER,
        ),
    )
    plain = dict.fromkeys(("subs", "data", "payload", "conn", "leaf", "imports", "exports"), -1) | {
        "wildcards": True
    }
    stores = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
    told = {
        system: claims(system, operator, "account", limits=plain),
        account: claims(account, operator, "account", limits=plain | stores),
    }
    preload = "\n".join(f"{key.public_key.decode()}: {claim}" for key, claim in told.items())
    extra = (
        f"operator: {claims(operator, operator, 'operator')}\n"
        f"system_account: {system.public_key.decode()}\n"
        f"resolver: MEMORY\nresolver_preload {{\n{preload}\n}}"
    )
    unlimited = {"subs": -1, "data": -1, "payload": -1}
    credentials = tmp_path / "node.creds"
    credentials.write_text(
        f"-----BEGIN NATS USER JWT-----\n{claims(user, account, 'user', **unlimited)}\n"
        "------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
    )
    settings = StreamSettings(partitions=1, replicas=1)
    with Servers(tmp_path / "nats", extra=extra) as servers:
        access = Access(servers=servers.urls, credentials=str(credentials))
        journal = JetStreamJournal(tmp_path, access, settings)
        journal.recover(0)
        assert commit(journal, 0, [keys({"a": b"1"})]) is Outcome.DURABLE
        journal.close()
        with pytest.raises(EngineError, match=r"(?i)authorization"):
            JetStreamJournal(tmp_path, Access(servers=servers.urls), settings)


# Owners


def test_who_takes_a_partition_up_fences_its_owner_before(one: Servers, made: Make) -> None:
    first, second = made(one), made(one, "b")
    for partition in (0, 1):
        first.recover(partition)
    commit(first, 0, [keys({"a": b"1"})])
    assert keys_of(second) == {b"a": b"1"}
    outcomes = Outcomes()
    first.append({0: [keys({"a": b"2"})], 1: [keys({"a": b"2"})]}, outcomes)
    assert outcomes.wait(2) == {0: Outcome.LOST, 1: Outcome.DURABLE}
    assert commit(first, 0, [keys({"a": b"3"})]) is Outcome.LOST
    assert commit(second, 0, [keys({"b": b"4"})]) is Outcome.DURABLE
    found = first.recover(0)
    assert found.epoch == 3
    assert State.of(found).keys == {b"a": b"1", b"b": b"4"}
    assert commit(second, 0, [keys({"b": b"5"})]) is Outcome.LOST
    assert first.fenced + second.fenced == 2


def test_what_was_appended_behind_a_fenced_commit_is_lost_with_it(one: Servers, made: Make) -> None:
    """The trap: a second write in flight that expects one sequence more would be accepted."""
    first, second = made(one), made(one, "b")
    first.recover(0)
    commit(first, 0, [keys({"a": b"1"})])
    second.recover(0)
    outcomes = Outcomes()
    for k in range(50):
        first.append({0: [keys({f"late/{k}": b"x"})]}, outcomes)
    outcomes.wait(50)
    assert outcomes.told == [{0: Outcome.LOST}] * 50
    commit(second, 0, [keys({"b": b"2"})])
    assert keys_of(second) == {b"a": b"1", b"b": b"2"}


def test_two_owners_that_race_lose_nothing_and_write_nothing_twice(
    one: Servers, made: Make
) -> None:
    nodes = [made(one, "a"), made(one, "b")]
    durable: set[bytes] = set()
    unknown: set[bytes] = set()
    epochs: list[int] = []
    lock = threading.Lock()

    def taken_up(journal: JetStreamJournal) -> Recovered:
        while True:  # the other may have been faster again and again, which is no failure
            try:
                return journal.recover(0)
            except EngineError as error:
                if not error.retriable:
                    raise

    def own(journal: JetStreamJournal, name: str) -> None:
        for term in range(6):
            found = taken_up(journal)
            list(found.records)
            with lock:
                epochs.append(found.epoch)
            for k in range(40):
                key = f"{name}/{term}/{k}"
                outcome = commit(journal, 0, [keys({key: b"x"})])
                with lock:
                    if outcome is Outcome.DURABLE:
                        durable.add(key.encode())
                    elif outcome is Outcome.UNAVAILABLE:
                        unknown.add(key.encode())
                if outcome is not Outcome.DURABLE:
                    break

    threads = [threading.Thread(target=own, args=(nodes[k], "ab"[k])) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(epochs)) == len(epochs) == 12, "one owner for each epoch"
    found = keys_of(nodes[0]).keys()
    assert durable <= found <= durable | unknown


def test_large_commits_travel_in_parts(one: Servers, made: Make) -> None:
    journal = made(one)
    journal.recover(0)
    value = secrets.token_bytes(5_000_000)
    assert commit(journal, 0, [keys({"large": value}), keys({"small": b"x"})]) is Outcome.DURABLE
    first, last = message_count(journal)
    assert last - first >= 5
    assert commit(journal, 0, [keys({"after": b"x"})]) is Outcome.DURABLE
    cold = made(one, "cold")
    assert keys_of(cold) == {b"large": value, b"small": b"x", b"after": b"x"}


def test_parts_without_the_last_one_are_dropped(one: Servers, made: Make) -> None:
    journal = made(one)
    journal.recover(0)
    commit(journal, 0, [keys({"a": b"1"})])
    partition = journal._all[0]
    end = partition.copy.end
    _, _, pieces = encode_commit(
        [keys({"large": bytes(3_000_000)})], journal._identity.mark, 0, end
    )
    parts = split(pieces, journal._identity.mark, end, journal._client.max_payload)
    sequence = partition.sequence
    for envelope, data in parts[:-1]:
        told = journal._wait(partition.stream.publish(data, f"x{envelope.part}", sequence))
        sequence = told[1]
    for node in ("b", "c"):
        other = made(one, node)
        assert keys_of(other) == {b"a": b"1"}
        assert commit(other, 0, [keys({"a": b"1"})]) is Outcome.DURABLE
    assert keys_of(journal) == {b"a": b"1"}


# Faults of servers and connections


def write_on(
    journal: JetStreamJournal, stop: threading.Event, acked: list[int], told: list[Outcome]
) -> None:
    """Append numbers one after the other, as long as they become durable."""
    k = 0
    while not stop.is_set():
        outcomes = Outcomes()
        journal.append({0: [some_rows(k, [b"%d" % k])]}, outcomes)
        outcome = outcomes.wait(timeout=90)[0]
        told.append(outcome)
        if outcome is not Outcome.DURABLE:
            return
        acked.append(k)
        k += 1


def more(acked: list[int]) -> None:
    """Wait until appends have gone on."""
    before = len(acked)
    wait_for(lambda: len(acked) > before + 20, "appends go on")


@pytest.mark.soak
def test_a_killed_leader_loses_nothing(three: Servers, made: Make) -> None:
    journal = made(three)
    journal.recover(0)
    stop, acked, told = threading.Event(), list[int](), list[Outcome]()
    thread = threading.Thread(target=write_on, args=(journal, stop, acked, told))
    thread.start()
    try:
        for _ in range(2):
            more(acked)
            leader = three.leader(stream_of(journal))
            three.kill(leader)
            more(acked)
            three.start([leader])
    finally:
        stop.set()
        thread.join()
    assert set(told) == {Outcome.DURABLE}
    assert journal.losses == []
    cold = made(three, "cold")
    cold.recover(0)
    found = payloads(cold, 0)
    assert found == {k: b"%d" % k for k in acked}, "in order, once, and all of them"


@pytest.mark.soak
def test_a_leader_that_stands_still_loses_nothing(three: Servers, made: Make) -> None:
    journal = made(three, give_up=60.0)
    journal.recover(0)
    stop, acked, told = threading.Event(), list[int](), list[Outcome]()
    thread = threading.Thread(target=write_on, args=(journal, stop, acked, told))
    thread.start()
    leader = three.leader(stream_of(journal))
    try:
        more(acked)
        three.freeze(leader)
        more(acked)
    finally:
        three.thaw(leader)
        more(acked)
        stop.set()
        thread.join()
    assert set(told) == {Outcome.DURABLE}
    cold = eventually(lambda: made(three, "cold"))
    eventually(lambda: cold.recover(0))
    assert payloads(cold, 0) == {k: b"%d" % k for k in acked}


@pytest.mark.soak
def test_all_servers_restart(three: Servers, made: Make) -> None:
    journal = made(three, give_up=120.0)
    journal.recover(0)
    commit(journal, 0, [keys({"a": b"1"})])
    for k in range(3):
        three.kill(k)
    outcomes = Outcomes()
    journal.append({0: [keys({"b": b"2"})]}, outcomes)
    wait_for(lambda: journal.troubles, "trouble is told")
    assert list(journal.troubles) == [0]
    assert outcomes.told == []
    three.start()
    assert outcomes.wait(timeout=60) == {0: Outcome.DURABLE}
    assert journal.troubles == {}
    assert keys_of(made(three, "cold")) == {b"a": b"1", b"b": b"2"}


@pytest.mark.soak
def test_without_a_quorum_the_journal_gives_up_in_the_end(three: Servers, made: Make) -> None:
    journal = made(three, give_up=1.0)
    journal.recover(0)
    commit(journal, 0, [keys({"a": b"1"})])
    three.kill(0)
    three.kill(1)
    try:
        assert commit(journal, 0, [keys({"b": b"2"})]) is Outcome.UNAVAILABLE
        assert commit(journal, 0, [keys({"c": b"3"})]) is Outcome.UNAVAILABLE
        with pytest.raises(EngineError) as raised:
            journal.recover(0)
        assert raised.value.retriable
    finally:
        three.start([0, 1])
    found = eventually(lambda: keys_of(journal))
    assert found in ({b"a": b"1"}, {b"a": b"1", b"b": b"2"})
    assert commit(journal, 0, [keys({"d": b"4"})]) is Outcome.DURABLE


def test_a_lost_answer_is_asked_for_again_and_the_commit_is_there_once(
    one: Servers, made: Make
) -> None:
    with Proxy(one.urls[0].replace("nats://", "kobold-3://")) as proxy:
        journal = made(one, urls=(f"nats://127.0.0.1:{proxy.port}",))
        journal.recover(0)
        commit(journal, 0, [keys({"a": b"1"})])
        for k in range(3):
            before = message_count(journal)[1]
            proxy.to_client.half_open()  # the server stores it, and its answer is dropped
            outcomes = Outcomes()
            journal.append({0: [keys({f"k{k}": b"x"})]}, outcomes)
            watcher = made(one, f"watcher{k}")
            wait_for(lambda w=watcher, n=before: message_count(w)[1] > n, "it is stored")
            assert outcomes.told == []
            proxy.to_client.heal()
            assert outcomes.wait(timeout=60) == {0: Outcome.DURABLE}
            assert message_count(journal)[1] == before + 1, "once"
        assert journal.retries > 0
        assert keys_of(journal).keys() == {b"a", b"k0", b"k1", b"k2"}


def test_our_own_message_whose_id_the_server_forgot_is_no_fence(one: Servers, made: Make) -> None:
    journal = made(one)
    journal.recover(0)
    partition = journal._all[0]
    before = partition.copy.end
    _, _, pieces = encode_commit([keys({"a": b"1"})], journal._identity.mark, 0, before)
    ((_, data),) = split(pieces, journal._identity.mark, before, journal._client.max_payload)
    stream: Stream = partition.stream
    first = journal._wait(stream.publish(data, "mine", partition.sequence))
    assert first[0].value == "stored"
    assert journal._wait(stream._fenced("mine", partition.sequence)) == first
    assert journal._wait(stream._fenced("other", partition.sequence))[0].value == "fenced"
    last = message_count(journal)[1]
    assert journal._wait(stream._fenced("mine", last + 5))[0].value == "unknown"


@pytest.mark.soak
def test_killed_owners_lose_nothing_and_start_warm(
    one: Servers, made: Make, tmp_path: Path
) -> None:
    prefix = made(one)._settings.prefix
    last = -1
    for k in range(6):
        folder = str(tmp_path / "ab"[k % 2])
        command = [sys.executable, "-m", "tests.journal.stream_crash", folder, prefix, *one.urls]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
            assert owner.stdout is not None
            told = [int(owner.stdout.readline()) for _ in range(30 + 20 * k)]
            owner.kill()
            told += [int(line) for line in owner.stdout]
        assert told[0] > last, "an offset is never given twice"
        last = told[-1]
    for node in ("a", "b", "cold"):
        journal = made(one, node)
        found = State.of(journal.recover(0))
        rows = payloads(journal, 0)
        assert rows.keys() == set(range(len(rows))), "offsets have no holes"
        assert rows == {n: b"%d" % n for n in rows}
        assert len(rows) > last
        assert found.keys == {b"last": b"%d" % (len(rows) - 1)}
        assert [loss for loss in journal.losses if loss.harm is not Harm.TORN] == []
        if node != "cold":
            assert journal.copied < 300, "only what it did not have"


# Damage


def test_damaged_bytes_are_no_message(one: Servers, made: Make) -> None:
    journal = made(one)
    end = End(3, 1, 5, 2, 77)
    packed = Envelope(0, 1, journal._identity.mark, end).pack()
    assert Envelope.parse(packed) == Envelope(0, 1, journal._identity.mark, end)
    for k in range(len(packed)):
        damaged = bytearray(packed)
        damaged[k] ^= 1
        assert Envelope.parse(bytes(damaged)) is None
    assert Envelope.parse(packed[:-1]) is None


def flip(path: Path, share: float) -> None:
    """Flip one bit of a file, at a share of its length."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * share)] ^= 1
    path.write_bytes(data)


#: Bytes of rows with which a stream has several files.
LARGE = 400_000


def fill(journal: JetStreamJournal, count: int = 60, size: int = 64) -> dict[int, bytes]:
    """Append rows in many messages, and say what was appended."""
    values = {k: secrets.token_bytes(size) for k in range(count)}
    for k, value in values.items():
        assert commit(journal, 0, [some_rows(k, [value]), keys({"n": b"%d" % k})]) is (
            Outcome.DURABLE
        )
    return values


def damage(servers: Servers, journal: JetStreamJournal, k: int) -> None:
    """Damage the first file of messages that a server keeps, as if it had crashed.

    Of that file it takes what is before the damage, and says nothing about the rest.
    """
    servers.kill(k)
    block = servers.blocks(k, stream_of(journal))[0]
    flip(block, 0.5)
    block.with_name("index.db").unlink(missing_ok=True)
    servers.start([k])


@pytest.mark.soak
def test_a_damaged_replica_that_leads_hides_nothing(
    three: Servers, made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = made(three)
    journal.recover(0)
    values = fill(journal, size=LARGE)
    journal.close()
    victim = (three.leader(stream_of(journal)) + 1) % 3
    damage(three, journal, victim)
    cold = eventually(lambda: made(three, "cold", urls=(three.urls[victim],)))
    stream = cold._all[0].stream
    body = {"placement": {"preferred": f"n{victim}"}}

    def leads() -> bool:
        if three.leader(stream.name) == victim:
            return True
        with contextlib.suppress(EngineError):
            cold._wait(stream._call("STREAM.LEADER.STEPDOWN", body))
        return False

    wait_for(leads, "the damaged one leads")
    told = eventually(lambda: cold._wait(stream._done("STREAM.INFO", {})))["state"]
    assert told["messages"] < told["last_seq"], "the leader hides messages"

    async def of_leader(sequence: int, most: int = 0) -> list[Stored]:
        found = await stream.leaders(sequence)
        return [found] if found is not None else []

    monkeypatch.setattr(stream, "fetch", of_leader)
    found = eventually(lambda: State.of(cold.recover(0)))
    assert found.keys == {b"n": b"59"}
    assert payloads(cold, 0) == values
    assert cold.losses == []
    assert cold.repairs > 0


def eventually(work: Callable[[], T]) -> T:
    """Do something until it works, as one does with errors that can be retried."""
    ends = time.monotonic() + PATIENCE
    while True:
        try:
            return work()
        except EngineError as error:
            if not error.retriable or time.monotonic() > ends:
                raise
            time.sleep(0.2)


@pytest.mark.soak
def test_a_hole_that_nobody_can_fill_is_refused_loudly(tmp_path: Path, made: Make) -> None:
    with Servers(tmp_path / "nats") as servers:
        journal = made(servers)
        journal.recover(0)
        journal.recover(1)
        fill(journal, size=LARGE)
        damage(servers, journal, 0)
        cold = made(servers, "cold")
        with pytest.raises(EngineError, match=r"partition 0 is refused: .* is missing"):
            journal_of_nobody(journal, cold)
        assert [loss.harm for loss in cold.losses] == [Harm.MISSING]
        assert list(cold.troubles) == [0]
        assert keys_of(cold, 1) == {}, "the other partition is served"


def journal_of_nobody(owner: JetStreamJournal, cold: JetStreamJournal) -> None:
    """Take a partition up although its owner and its copy are gone."""
    owner.close()
    shutil.rmtree(owner._data)
    cold.recover(0)


@pytest.mark.soak
@pytest.mark.parametrize("size", [64, LARGE], ids=["the end", "the middle"])
def test_what_is_missing_is_taken_from_the_copy_of_another_node(
    size: int, tmp_path: Path, made: Make
) -> None:
    with Servers(tmp_path / "nats") as servers:
        journal = made(servers)
        journal.recover(0)
        values = fill(journal, size=size)
        damage(servers, journal, 0)
        wait_for(lambda: message_count(journal)[1] > 0, "the server is back")
        cold = made(servers, "cold")
        assert keys_of(cold) == {b"n": b"59"}
        assert payloads(cold, 0) == values
        assert cold.repairs > 0
        assert cold.losses == []
        assert commit(cold, 0, [keys({"n": b"more"})]) is Outcome.DURABLE
        assert keys_of(made(servers, "colder")) == {b"n": b"more"}


# Standbys


def level(journal: JetStreamJournal, last: int, partition: int = 0) -> None:
    """Wait until a standby has this message."""
    one = journal._all[partition]
    wait_for(lambda: one.sequence >= last, "the standby is level")


def test_a_standby_follows_and_tells_its_lag(one: Servers, made: Make) -> None:
    owner, standby = made(one), made(one, "b")
    owner.recover(0)
    standby.follow(0)
    values = fill(owner, 30)
    level(standby, message_count(owner)[1])
    assert standby.lag(0) == (0, 0.0)
    assert payloads(standby, 0) == values
    position = standby.positions()[0]
    assert (position.first, position.next) == (0, 30)
    with pytest.raises(EngineError, match="was not taken up"):
        standby.append({0: [keys({"a": b"1"})]}, Outcomes())
    with pytest.raises(EngineError, match="neither owned nor followed"):
        list(standby.read(1, 0, 1))


def test_a_standby_goes_on_after_a_restart_and_is_a_warm_start(one: Servers, made: Make) -> None:
    owner, standby = made(one), made(one, "b")
    owner.recover(0)
    standby.follow(0)
    fill(owner, 30)
    level(standby, message_count(owner)[1])
    standby.close()
    for k in range(30, 40):
        commit(owner, 0, [some_rows(k, [b"later"])])
    again = made(one, "b")
    again.follow(0)
    level(again, message_count(owner)[1])
    assert again.copied <= 12, "only the rest came over the network"
    owner.close()
    copied = again.copied
    found = again.recover(0)
    assert (found.offset, State.of(found).keys) == (40, {b"n": b"29"})
    assert again.copied == copied
    assert commit(again, 0, [keys({"n": b"new owner"})]) is Outcome.DURABLE


def test_an_owner_that_is_fenced_can_follow(one: Servers, made: Make) -> None:
    first, second = made(one), made(one, "b")
    first.recover(0)
    commit(first, 0, [keys({"a": b"1"})])
    second.recover(0)
    assert commit(first, 0, [keys({"b": b"x"})]) is Outcome.LOST
    first.follow(0)
    commit(second, 0, [some_rows(0, [b"row"])])
    level(first, message_count(second)[1])
    assert payloads(first, 0) == {0: b"row"}
    assert keys_of(first) == {b"a": b"1"}


def test_a_copy_that_is_damaged_or_gone_is_fetched_again(
    one: Servers, made: Make, tmp_path: Path
) -> None:
    owner, standby = made(one), made(one, "b")
    owner.recover(0)
    values = fill(owner, 20)
    standby.follow(0)
    level(standby, message_count(owner)[1])
    standby.close()
    (segment,) = (tmp_path / "b" / "copies" / "0000" / "journal").glob("*.wlj")
    flip(segment, 0.3)
    again = made(one, "b")
    assert keys_of(again) == {b"n": b"19"}
    assert payloads(again, 0) == values
    assert [loss.harm for loss in again.losses if "copy" in loss.where] == [Harm.DAMAGED]
    again.unfollow(0, forget=True)
    assert not (tmp_path / "b" / "copies" / "0000").exists()
    assert keys_of(again) == {b"n": b"19"}


def test_what_a_stream_has_lost_at_its_end_is_restored_from_a_copy(
    tmp_path: Path, made: Make
) -> None:
    with Servers(tmp_path / "nats") as servers:
        journal = made(servers)
        journal.recover(0)
        fill(journal, 5)
        backup = tmp_path / "backup"
        servers.kill(0)
        shutil.copytree(tmp_path / "nats" / "d0", backup)
        servers.start([0])
        wait_for(lambda: message_count(journal)[1] > 0, "the server is back")
        values = fill_on(journal, 5, 10)
        servers.kill(0)
        shutil.rmtree(tmp_path / "nats" / "d0")
        shutil.copytree(backup, tmp_path / "nats" / "d0")
        servers.start([0])
        again = made(servers, "a2")
        del again
        journal.close()
        shutil.rmtree(tmp_path / "a2", ignore_errors=True)
        same = made(servers)
        assert keys_of(same) == {b"n": b"9"}
        assert payloads(same, 0).keys() == set(range(10))
        assert {k: payloads(same, 0)[k] for k in values} == values
        assert same.repairs == 1
        assert keys_of(made(servers, "cold")) == {b"n": b"9"}


def fill_on(journal: JetStreamJournal, start: int, stop: int) -> dict[int, bytes]:
    values = {k: secrets.token_bytes(64) for k in range(start, stop)}
    for k, value in values.items():
        commit(journal, 0, [some_rows(k, [value]), keys({"n": b"%d" % k})])
    return values


def test_a_stream_that_somebody_emptied_is_refused(one: Servers, made: Make) -> None:
    journal = made(one)
    journal.recover(0)
    fill(journal, 3)
    journal._wait(journal._all[0].stream.purge(message_count(journal)[1] + 1))
    journal.close()
    with pytest.raises(EngineError, match="the stream is empty, and the copy here ends with 7"):
        made(one).recover(0)


# Purging


def test_a_stream_is_purged_up_to_what_is_needed(one: Servers, made: Make) -> None:
    journal = made(one)
    journal.recover(0)
    for k in range(20):
        commit(journal, 0, [some_rows(k, [b"m%d" % k], type=Type.MESSAGES), keys({"n": b"x"})])
    journal.tidy(time.time())
    assert message_count(journal)[0] == 1, "without a checkpoint everything is needed"
    begin = journal.positions()[0].number
    commit(journal, 0, [keys({"n": b"state"}), checkpoint(begin)])
    journal.keep(0, Needed(private=[(12, 14)], slot=20))
    journal.tidy(time.time())
    first, last = message_count(journal)
    assert 1 < first <= 14
    cold = made(one, "cold")
    assert keys_of(cold) == {b"n": b"state"}
    assert payloads(cold, 0, space=Space.PRIVATE).keys() >= set(range(12, 20))
    assert cold.recover(0).slot == 20, "slots are not given twice although their rows are gone"
    cold.keep(0, Needed(slot=20))
    cold.tidy(time.time())
    assert message_count(cold)[0] > 20
    assert last < message_count(cold)[1]
    journal._wait(journal._all[0].stream.purge(message_count(cold)[1]))
    for node in ("cold", "a", "colder"):  # with one message that is left, and then a few
        for known in (cold, journal):
            known.close()
        again = made(one, node)
        assert (again.recover(0).slot, again.positions()[0].slot) == (20, 20)


def test_rows_go_from_the_stream_as_retention_says(one: Servers, made: Make) -> None:
    journal = made(one)
    journal.recover(0)
    for k in range(30):
        commit(journal, 0, [some_rows(k, [b"x" * 100], time=int(time.time() * 1e6) + k)])
    begin = journal.positions()[0].number
    commit(journal, 0, [keys({"n": b"state"}), checkpoint(begin)])
    journal.keep(0, Needed(offset=30))
    journal.tidy(time.time())
    assert message_count(journal)[0] <= 2, "no row is too old"
    journal.retain([Rule("#", max_age=10.0)])
    journal.tidy(time.time() + 60)
    journal.tidy(time.time() + 60)
    assert message_count(journal)[0] > 30
    cold = made(one, "cold")
    found = cold.recover(0)
    assert (found.offset, State.of(found).keys) == (30, {b"n": b"state"})


def test_a_purge_waits_for_a_standby_and_not_for_one_that_is_gone(one: Servers, made: Make) -> None:
    owner, standby = made(one), made(one, "b")
    owner.recover(0)
    standby.follow(0)
    commit(owner, 0, [keys({"old": b"x"})])
    level(standby, message_count(owner)[1])
    standby.unfollow(0)
    behind = standby._all[0].sequence
    for k in range(10):
        commit(owner, 0, [keys({"n": b"%d" % k})])
    begin = owner.positions()[0].number
    commit(owner, 0, [keys({"n": b"state"}), checkpoint(begin)])
    owner.keep(0, Needed())
    owner.tidy(time.time())
    assert message_count(owner)[0] <= behind + 1
    standby.close()
    owner.tidy(time.time())
    assert message_count(owner)[0] > behind + 1
    late = made(one, "b")
    late.follow(0)
    level(late, message_count(owner)[1])
    assert keys_of(late) == {b"n": b"state"}, "it begins anew where the stream begins"


# Records


def test_a_message_is_as_the_page_on_the_format_says(one: Servers, made: Make) -> None:
    """docs/format.md, rules 22 and 23, without our reader."""
    journal = made(one)
    journal.recover(0)
    commit(journal, 0, [some_rows(0, [b"x"]), keys({"a": b"1"})])
    commit(journal, 0, [keys({"large": bytes(2_000_000)})])
    stored = journal._wait(journal._all[0].stream.fetch(1))
    data = [message.data for message in stored]
    assert [message.sequence for message in stored] == [1, 2, 3, 4]
    marks = set()
    for message in data:
        assert message[:6] == b"WLJM\1\0"
        assert zlib.crc32(message[:64]) == struct.unpack_from("<I", message, 64)[0]
        marks.add(message[12:20])
    assert len(marks) == 1
    assert [struct.unpack_from("<HH", message, 6) for message in data] == [
        (0, 1), (0, 1), (0, 2), (1, 2),
    ]  # fmt: skip
    ends = [struct.unpack_from("<qqqqI", message, 20) for message in data]
    assert [end[:4] for end in ends] == [(0, 0, 0, 0), (1, 1, 0, 0), (3, 1, 1, 0), (3, 1, 1, 0)]
    epoch, rows = data[0][68:], data[1][68:]
    assert (epoch[:4], rows[:4]) == (b"WLJR", b"WLJR")
    assert ends[1][4] == struct.unpack_from("<I", epoch, 92)[0], "the checksum of the record before"


def test_a_record_of_a_newer_version_is_refused_by_name(one: Servers, made: Make) -> None:
    journal = made(one)
    packed = bytearray(Envelope(0, 1, journal._identity.mark, End()).pack())
    packed[4] = 9
    packed[-4:] = struct.pack("<I", crc32(bytes(packed[:-4])))
    with pytest.raises(EngineError, match="format 9, of a newer version of Wirelake"):
        Envelope.parse(bytes(packed))


async def test_appends_never_wait(one: Servers, made: Make) -> None:
    """From an event loop, which goes on while the network is slow."""
    journal = await asyncio.to_thread(made, one)
    await asyncio.to_thread(journal.recover, 0)
    outcomes = Outcomes()
    for k in range(200):
        journal.append({0: [keys({f"k{k}": b"x"})]}, outcomes, in_place=True)
    await asyncio.to_thread(outcomes.wait, 200)
    assert message_count(journal)[1] < 150, "commits that came meanwhile share a message"
    assert journal.backlog == 0


def test_an_empty_record_list_is_refused(one: Servers, made: Make) -> None:
    journal = made(one)
    journal.recover(0)
    with pytest.raises(EngineError, match="is empty"):
        journal.append({0: []}, Outcomes())
    assert commit(journal, 0, [Record(Type.NOTES)]) is Outcome.DURABLE
