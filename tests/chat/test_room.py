"""Rooms without a socket: the form of messages, the roster, the ticks."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirelake.chat.room import (
    BREAK,
    HEARTBEATS,
    HISTORY,
    MAX_BODY,
    MAX_LINES,
    MAX_MEMBERS,
    MAX_ROOM,
    MISSING,
    Entry,
    Kind,
    Note,
    Room,
    Tick,
    check_name,
    check_room,
    clean,
    mentions,
    pieces,
    read,
)
from wirelake.errors import ConfigError, RefusedError

NOW = datetime(2024, 5, 17, 12, 0, tzinfo=UTC)


def here(name: str, member: str = "m1", kind: Kind = Kind.HERE, text: str = "10") -> Note:
    """A sign of life."""
    return Note(kind, "lobby", name, member, text)


def test_a_message_is_one_line_that_people_can_read() -> None:
    note = Note(Kind.SAY, "lobby", "alice", "5f0c21aa.17", "hello, everybody")
    assert note.body() == b"chat/1 say lobby alice 5f0c21aa.17 hello, everybody"


@given(st.text(), st.sampled_from(Kind))
def test_what_is_written_is_read(text: str, kind: Kind) -> None:
    note = Note(kind, "team/ops", "zoë", "5f0c21aa.17", clean(text))
    assert read(note.body()) == note
    assert read(note.body(), note.address) == note


@given(st.binary() | st.binary().map(lambda data: b"chat/1 say lobby " + data))
def test_whatever_comes_in_is_a_note_or_none(payload: bytes) -> None:
    note = read(payload)
    kept = str.maketrans("", "", f"\u200d\u200c{BREAK}")
    assert note is None or note.text.translate(kept).isprintable()


@pytest.mark.parametrize(
    "payload",
    [
        b"hello",
        b"",
        b"chat/2 say lobby alice a1.1 hi",
        b"chat/1 shout lobby alice a1.1 hi",
        b"chat/1 say lobby alice a1.1",
        b"chat/1 say lobby alice ../../etc hi",
        b"chat/1 say lobby al\x1bice a1.1 hi",
        b"chat/1 say a/# alice a1.1 hi",
        b"chat/1 say lobby " + b"a" * 256 + b" a1.1 hi",
        b"chat/1 say lobby alice a1.1 \xff",
    ],
)
def test_what_is_not_in_the_form_is_no_note(payload: bytes) -> None:
    assert read(payload) is None


def test_a_message_cannot_claim_to_be_from_another_room() -> None:
    body = Note(Kind.SAY, "secret", "alice", "a1.1", "hi").body()
    assert read(body, "secret") is not None
    assert read(body, "lobby") is None
    assert read(here("alice").body(), "lobby") is None  # signs of life have a topic of their own


def test_text_cannot_control_the_terminal() -> None:
    assert clean("a\x1b[2Jb\tc\u202ed\x07") == "a [2Jb c d "
    assert clean("👩\u200d🚀 ok") == "👩\u200d🚀 ok"


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=1200))
def test_a_long_text_is_cut_into_bodies_that_every_dialect_can_carry(text: str) -> None:
    whole = Note(Kind.SAY, "x" * MAX_ROOM, "n" * 32, "5f0c21aa.999999999", text)
    try:
        cut = pieces(whole)
    except RefusedError:
        assert len(text.encode()) > 3000
        return
    for piece in cut:
        assert len(Note(Kind.SAY, whole.room, whole.name, whole.id, piece).body()) <= MAX_BODY
    spaces = str.maketrans("", "", f" {BREAK}")
    assert "".join(cut).translate(spaces) == text.translate(spaces)


def test_a_text_is_cut_between_words() -> None:
    cut = pieces(Note(Kind.SAY, "lobby", "alice", "a1.1", "word " * 300))
    assert len(cut) == 2
    assert all(piece.strip().split() == ["word"] * len(piece.split()) for piece in cut)


@pytest.mark.parametrize("name", ["", "a b", "a:b", "@alice", "a,b", "x" * 256, "😀" * 64, "a\n"])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        check_name(name)


@pytest.mark.parametrize(
    "name", ["", "a b", "a|b", "a/#", "a/+", "$sys", "x" * 123, "lobby/$chat", "a\udcff"]
)
def test_a_bad_room_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        check_room(name)


def test_people_may_put_a_hash_in_front_of_a_room() -> None:
    assert check_room("#team/ops") == check_room("team/ops") == "team/ops"


def test_who_comes_renames_and_leaves_is_told() -> None:
    room = Room("lobby")
    assert room.arrive(here("bob", kind=Kind.JOIN), 0) == "bob joined"
    assert room.arrive(here("bob"), 1) == ""
    assert room.arrive(here("rob"), 2) == "bob is now rob"
    assert room.names() == ["rob"]
    assert room.depart(here("rob", kind=Kind.LEAVE)) == "rob left"
    assert room.depart(here("rob", kind=Kind.LEAVE)) == ""
    assert room.names() == []


def test_who_was_here_before_us_is_no_news() -> None:
    room = Room("lobby")
    assert room.arrive(here("bob"), 0) == ""
    assert room.names() == ["bob"]


def test_who_is_silent_for_too_long_has_gone_and_may_come_back() -> None:
    room = Room("lobby")
    room.arrive(here("bob", text="10"), 0)
    room.arrive(here("eve", "m2", text="20"), 0)
    assert room.miss(10 * MISSING) == []
    assert room.miss(10 * MISSING + 1) == ["bob has gone without a word"]
    assert room.names() == ["eve"]
    assert room.arrive(here("bob"), 40) == "bob is back"


@pytest.mark.parametrize("claim", ["nan", "inf", "1e999", "-5", "forever", ""])
def test_nobody_is_here_for_ever_without_a_sign_of_life(claim: str) -> None:
    room = Room("lobby")
    room.arrive(here("ghost", text=claim), 0)
    assert room.miss(MISSING * HEARTBEATS[1] + 1) == ["ghost has gone without a word"]


def test_a_crowd_that_does_not_exist_takes_no_more_than_its_room() -> None:
    room = Room("lobby")
    for number in range(MAX_MEMBERS + 100):
        room.arrive(here("sybil", f"m{number}"), 0)
    assert len(room.members) == MAX_MEMBERS


def test_history_is_bounded_and_nothing_is_shown_twice() -> None:
    room = Room("lobby")
    for number in range(HISTORY + 5):
        entry = Entry(NOW, Kind.SAY, str(number), "bob", f"m1.{number}")
        assert room.add(entry)
        assert not room.add(entry)
    assert len(room.entries) == HISTORY
    assert room.entries[-1].text == str(HISTORY + 4)


def test_a_tick_only_grows_but_what_was_handed_over_may_have_to_wait_again() -> None:
    entry = Entry(NOW, Kind.SAY, "hi", "me", "m1.1", Tick.WAITING)
    assert entry.reach(Tick.HANDED)
    assert entry.reach(Tick.WAITING)
    assert entry.reach(Tick.TAKEN)
    assert not entry.reach(Tick.BACK)
    assert not entry.reach(Tick.WAITING)
    assert not entry.fail("the connection broke")
    assert entry.reach(Tick.SEEN)


def test_what_failed_says_why_and_is_known_better_if_it_comes_back() -> None:
    entry = Entry(NOW, Kind.SAY, "hi", "me", "m1.1", Tick.HANDED)
    assert entry.fail("too_large")
    assert (entry.tick, entry.why) == (Tick.FAILED, "too_large")
    assert entry.reach(Tick.BACK)


@pytest.mark.parametrize("text", ["alice?", "hi @Alice", "ALICE: look", "(alice)"])
def test_somebody_is_called_by_name(text: str) -> None:
    assert mentions(text, "alice")
    assert not mentions(text, "ali")


def test_lines_are_kept_and_their_number_is_limited() -> None:
    assert clean("def f():\n    return 1\r\nok") == f"def f():{BREAK}    return 1{BREAK}ok"
    many = clean("x\n" * 500)
    assert many.count(BREAK) == MAX_LINES - 1
    assert clean(many) == many


def test_a_message_to_one_member_has_an_address_of_its_own() -> None:
    note = Note(Kind.MSG, "lobby", "alice", "a1.1", "b2 psst")
    assert note.address == "lobby/$chat/b2"
    assert read(note.body(), "lobby/$chat/b2") == note
    assert read(note.body(), "lobby/$chat/c3") is None
    assert read(note.body(), "lobby") is None


def test_a_sign_of_life_tells_the_dialect() -> None:
    room = Room("lobby")
    room.arrive(here("alice", "m1", text="10 kobold-3"), 0.0)
    room.arrive(here("robert", "m2", text="10"), 0.0)
    assert [one.dialect for one in room.members.values()] == ["kobold-3", ""]
    assert room.miss(29.0) == []
    assert len(room.miss(31.0)) == 2


def test_the_newest_topic_counts_and_the_future_is_now() -> None:
    room = Room("lobby")

    def topic(text: str) -> Note:
        return Note(Kind.TOPIC, "lobby", "alice", "a1", text)

    assert (
        room.set_topic(topic("100 alice release day"), 1000) == "alice set the topic: release day"
    )
    assert room.set_topic(topic("100 alice release day"), 1000) == ""
    assert room.set_topic(topic("50 robert older"), 1000) == ""
    assert room.set_topic(topic("999999 robert from the future"), 1000) != ""
    assert room.topic_at == 1000
    assert room.set_topic(topic("1001 alice "), 1001) == "alice removed the topic"
    for bad in ("", "x alice y", "5", "-5 alice y", "²5 alice y", "2000 a:b y"):
        assert room.set_topic(topic(bad), 9999) == ""


def test_history_comes_before_what_is_there_and_once() -> None:
    room = Room("lobby")
    live = Entry(NOW, Kind.SAY, "live", "alice", "a1.2")
    room.add(live)
    old = [
        Entry(NOW, Kind.SAY, text, "alice", id) for text, id in (("old", "a1.1"), ("live", "a1.2"))
    ]
    room.recall(old)
    assert [one.text for one in room.entries] == ["old", "live"]
    assert room.entries[1] is live
    assert not room.add(Entry(NOW, Kind.SAY, "old", "alice", "a1.1"))
    room.recall([Entry(NOW, Kind.SAY, "x", "alice", f"b1.{n}") for n in range(2 * HISTORY)])
    assert len(room.entries) == HISTORY
    assert room.entries[-1] is live
