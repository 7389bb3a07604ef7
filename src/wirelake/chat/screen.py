"""The chat on a terminal: rooms on the left, history in the middle, members on the right.

Everything works from the keyboard. Colours are the terminal's own sixteen, so they fit any
background; nothing is told by colour alone. An event only marks the screen as stale. It is drawn
from the rooms at most thirty times a second, so a flood of messages cannot keep it busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import ClassVar
from zlib import crc32

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Input, Static

from wirelake.chat.member import Member
from wirelake.chat.room import MARKS, Entry, Kind, Room, Tick, mentions
from wirelake.chat.session import NAMES, Session
from wirelake.errors import WirelakeError

FRAME = 1 / 30  # seconds
MARGIN = 6  # the time, and what is below it
NAME_COLOURS = ("cyan", "green", "magenta", "blue", "red", "bright_cyan", "bright_green")
TICK_STYLES = {Tick.FAILED: "bold red", Tick.TAKEN: "cyan", Tick.SEEN: "bold green"}
MAX_INPUT = 5000
MAX_RECALLED = 100


class History(ScrollView, can_focus=False):
    """The entries of a room, wrapped to the width; scrolls along if the end was in view."""

    def __init__(self) -> None:
        super().__init__(id="history")
        self._drawn: dict[Entry, tuple[Tick | None, list[Strip]]] = {}
        self._lines: list[Strip] = []
        self._width = 0
        self._room: Room | None = None
        self.follows = True  # the end

    def draw(self, room: Room, me: str) -> None:
        """Show a room; wraps only entries that are new or changed."""
        self.follows |= room is not self._room
        width = self.scrollable_content_region.width
        if width != self._width:
            self._drawn, self._width = {}, width
        drawn = {}
        for entry in room.entries:
            known = self._drawn.get(entry)
            if known is None or known[0] is not entry.tick:
                known = (entry.tick, self._wrap(entry, me))
            drawn[entry] = known
        self._drawn, self._room = drawn, room
        self._lines = [line for _, lines in drawn.values() for line in lines]
        self.virtual_size = Size(width, len(self._lines))
        if self.follows:
            self.scroll_end(animate=False)
        self.refresh()

    def turn_pages(self, step: int) -> None:
        """Scroll by pages; at the end, follow new entries again."""
        self.scroll_relative(y=step * (self.size.height - 1), animate=False, immediate=True)
        self.follows = self.is_vertical_scroll_end

    def _wrap(self, entry: Entry, me: str) -> list[Strip]:
        width = max(self._width - MARGIN, 8)
        lines = as_line(entry, me).wrap(self.app.console, width)
        strips = []
        for number, line in enumerate(lines):
            line.rstrip()
            first = Text(f"{entry.at:%H:%M} " if number == 0 else " " * MARGIN, "bright_black")
            whole = Text.assemble(first, line, end="")
            strips.append(Strip(list(whole.render(self.app.console))))
        return strips

    def render_line(self, y: int) -> Strip:
        """The line at row `y` of the view."""
        y += self.scroll_offset.y
        line = self._lines[y] if y < len(self._lines) else Strip.blank(self.size.width)
        return line.crop_extend(0, self.size.width, self.rich_style).apply_style(self.rich_style)


def as_line(entry: Entry, me: str) -> Text:
    """An entry as coloured text."""
    if entry.kind is None:
        return Text(f"· {entry.text}", "bright_black italic")
    is_own = entry.tick is not None
    colour = "bold" if is_own else f"bold {name_colour(entry.name)}"
    called = not is_own and mentions(entry.text, me)
    line = Text("* " if entry.kind is Kind.ME else "", "bold")
    line.append(entry.name, colour) if entry.name else line.append("?", "bold yellow")
    line.append(" " if entry.kind is Kind.ME else "  ")
    line.append(entry.text, "bold yellow" if called else "italic" if entry.kind is Kind.ME else "")
    if entry.tick is not None:
        line.append(f" {MARKS[entry.tick]}", TICK_STYLES.get(entry.tick, "bright_black"))
        line.append(f" {entry.why}" if entry.why else "", "red")
    return line


def name_colour(name: str) -> str:
    """The colour of a name, which is the same on all screens."""
    return NAME_COLOURS[crc32(name.casefold().encode()) % len(NAME_COLOURS)]


class Prompt(Input):
    """The input line: Tab completes commands and names, Up and Down recall earlier lines.

    Keys are handled here and not by bindings: bindings run later than the keys that follow, so
    what a fast typist types after Enter would end up in the wrong line.
    """

    class Typed(Message):
        """A line was typed."""

        def __init__(self, line: str) -> None:
            super().__init__()
            self.line = line

    def __init__(self) -> None:
        super().__init__(id="prompt", max_length=MAX_INPUT, select_on_focus=False, compact=True)
        self._typed: list[str] = []
        self._place = 0
        self.names: list[str] = []  # of those who are here

    def on_key(self, event: events.Key) -> None:
        """Enter, Tab, Up and Down."""
        match event.key:
            case "enter":
                self._enter()
            case "tab":
                self._complete()
            case "up" | "down":
                self._recall(-1 if event.key == "up" else 1)
            case _:
                return
        event.prevent_default()
        event.stop()

    def _enter(self) -> None:
        if self.value.strip():
            self._typed = [*self._typed[1 - MAX_RECALLED :], self.value]
            self.post_message(self.Typed(self.value))
        self._place = len(self._typed)
        self.clear()

    def _recall(self, step: int) -> None:
        self._place = min(max(self._place + step, 0), len(self._typed))
        self.value = self._typed[self._place] if self._place < len(self._typed) else ""
        self.cursor_position = len(self.value)

    def _complete(self) -> None:
        """Complete the word before the cursor as far as it is unambiguous."""
        before = self.value[: self.cursor_position]
        start = before.rfind(" ") + 1
        word = before[start:]
        if start == 0 and word.startswith("/"):
            found = complete(word, NAMES)
        else:
            at = "@" if word.startswith("@") else ""
            found = at + complete(word.removeprefix("@"), self.names)
        self.value = before[:start] + found + self.value[self.cursor_position :]
        self.cursor_position = start + len(found)

    def on_paste(self, event: events.Paste) -> None:
        """Join pasted lines into one, so that nothing is sent without Enter."""
        event.prevent_default()
        event.stop()
        self.insert_text_at_cursor(" ".join(event.text.splitlines()))


def complete(word: str, words: Iterable[str]) -> str:
    """The only word with this prefix and a space; or the longest prefix all such words share."""
    found = [one for one in words if word and one.casefold().startswith(word.casefold())]
    if len(found) == 1:
        return found[0] + " "
    end = len(word)
    while found and len({one[: end + 1].casefold() for one in found}) == 1:
        if end >= min(len(one) for one in found):
            break
        end += 1
    return found[0][:end] if found else word


class ChatApp(App[None]):
    """The screen; the watcher of the member whose chat it shows."""

    ENABLE_COMMAND_PALETTE = False
    TITLE = "wirelake chat"
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012  # Textual declares it as no class variable
        (0, "-narrow"),
        (50, "-middle"),
        (70, "-wide"),
    ]
    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    #title, #status { height: 1; }
    #title { background: ansi_blue; color: ansi_bright_white; }
    #middle { height: 1fr; }
    #rooms, #here { width: 15; height: 100%; padding: 0 1; }
    #rooms { border-right: solid ansi_bright_black; }
    #here { border-left: solid ansi_bright_black; }
    #history { padding: 0 1; scrollbar-size-vertical: 1; scrollbar-color: ansi_bright_black;
        scrollbar-background: ansi_default; scrollbar-gutter: stable; overflow-x: hidden; }
    #prompt { border-top: solid ansi_bright_black; background: ansi_default; height: 2;
        padding: 0 1; }
    .-narrow #rooms, .-narrow #here, .-middle #rooms { display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+n", "turn(1)", priority=True),
        Binding("ctrl+p", "turn(-1)", priority=True),
        Binding("pageup", "scroll(-1)", priority=True),
        Binding("pagedown", "scroll(1)", priority=True),
        Binding("f1", "help", priority=True),
        Binding("ctrl+c,ctrl+q", "leave", priority=True),
    ]

    def __init__(self, place: str) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self.failure: WirelakeError | None = None
        self._place = place
        self._session: Session | None = None
        self._typed: asyncio.Queue[str] = asyncio.Queue()
        self._is_stale = False
        self._rings = False

    async def show(self, session: Session) -> None:
        """Show a session until it is over; raises what ended the connection."""
        self._session = session
        await self.run_async(mouse=False)
        if self.failure is not None:
            raise self.failure

    @property
    def session(self) -> Session:
        """The session that is shown."""
        assert self._session is not None
        return self._session

    @property
    def member(self) -> Member:
        """Whose chat this is."""
        return self.session.member

    def compose(self) -> ComposeResult:
        """The parts of the screen."""
        yield Static(id="title")
        with Horizontal(id="middle"):
            yield Static(id="rooms")
            yield History()
            yield Static(id="here")
        yield Prompt()
        yield Static(id="status")

    def on_mount(self) -> None:
        """Draw for the first time, and listen to the keyboard."""
        self.query_one(Prompt).focus()
        self.run_worker(self._type())
        self.run_worker(self._wait_for_the_end())
        self.stirred()

    async def _type(self) -> None:
        """Execute typed lines one at a time."""
        while True:
            await self.session.type(await self._typed.get())
            self.stirred()

    async def _wait_for_the_end(self) -> None:
        await self.session.over.wait()
        self.exit()

    # What happens in the chat

    def is_watching(self, room: Room) -> bool:
        """Whether a room is the current one."""
        return self._session is not None and self._session.room is room

    def added(self, room: Room, entry: Entry) -> None:
        """Ring the bell if the entry has our name in it; draw it."""
        if self._session is not None:
            is_talk = entry.tick is None and entry.kind is not None
            self._rings |= is_talk and mentions(entry.text, self.member.name)
        self.stirred()

    def ticked(self, room: Room, entry: Entry) -> None:
        """Draw the new delivery state."""
        self.stirred()

    def stirred(self) -> None:
        """Draw soon, together with whatever else changes until then."""
        if self._session is not None and not self._is_stale:
            self._is_stale = True
            asyncio.get_running_loop().call_later(FRAME, self.call_later, self._draw)

    def ended(self, error: WirelakeError) -> None:
        """End the session; `show` raises the error."""
        self.failure = error
        if self._session is not None:
            self._session.over.set()

    # What is on the screen

    def on_resize(self) -> None:
        """Wrap the lines to the new width."""
        self.stirred()

    def _draw(self) -> None:
        self._is_stale = False
        room, name = self.session.room, self.member.name
        self._draw_title(room, name)
        self._draw_rooms(room)
        self._draw_roster(room, name)
        self._draw_status()
        prompt = self.query_one(Prompt)
        prompt.names = room.names()
        prompt.placeholder = f"say something in #{room.name}"
        self.query_one(History).draw(room, name)
        if self._rings:
            self._rings = False
            self.bell()

    def _draw_title(self, room: Room, name: str) -> None:
        left = Text(f" wirelake chat   #{room.name}", "bold")
        right = f"{name} · {len(room.members) + 1} here "
        left.truncate(max(self.size.width - len(right) - 1, 0), overflow="ellipsis", pad=True)
        self.query_one("#title", Static).update(Text.assemble(left, " ", right))

    def _draw_rooms(self, front: Room) -> None:
        lines = [Text("rooms", "bright_black")]
        for room in self.member.rooms.values():
            line = Text(f"#{room.name}", "bold reverse" if room is front else "")
            unread = f" {'@' if room.is_mentioned else ''}{room.unread}" if room.unread else ""
            line.truncate(12 - len(unread), overflow="ellipsis")
            lines.append(line.append(unread, "bold yellow"))
        self._fill("#rooms", lines)

    def _draw_roster(self, room: Room, me: str) -> None:
        lines = [Text("here", "bright_black"), Text(f"{me}", "bold", overflow="ellipsis")]
        lines += [Text(one, name_colour(one), overflow="ellipsis") for one in room.names()]
        for line in lines:
            line.truncate(12, overflow="ellipsis")
        self._fill("#here", lines)

    def _fill(self, part: str, lines: list[Text]) -> None:
        """Show as many lines as fit, then the number of those that do not."""
        widget = self.query_one(part, Static)
        height = max(widget.size.height, 1)
        if len(lines) > height > 1:
            rest = len(lines) - height + 1
            lines = [*lines[: height - 1], Text(f"+{rest} more", "bright_black")]
        widget.update(Text("\n").join(lines))

    def _draw_status(self) -> None:
        if self.member.trouble:
            left = Text.assemble((" ● reconnecting  ", "bold red"), self.member.trouble)
        else:
            left = Text.assemble((" ● ", "bold green"), f"connected  {self._place}")
        keys = "F1 help  ^N next room  ^C quit "
        if not self.query_one(History).follows:
            keys = "PgDn more below "
        elif self.size.width < len(keys) + 40:
            keys = "F1 help "
        left.truncate(max(self.size.width - len(keys) - 1, 0), overflow="ellipsis", pad=True)
        self.query_one("#status", Static).update(Text.assemble(left, " ", (keys, "bright_black")))

    # What people do

    def on_prompt_typed(self, event: Prompt.Typed) -> None:
        """Queue the line behind those typed before."""
        self._typed.put_nowait(event.line)

    def action_turn(self, step: int) -> None:
        """Go to the next or previous room."""
        self.session.turn(step)
        self.stirred()

    def action_scroll(self, step: int) -> None:
        """Scroll the history by a page."""
        self.query_one(History).turn_pages(step)
        self.stirred()

    def action_help(self) -> None:
        """As /help."""
        self._typed.put_nowait("/help")

    def action_leave(self) -> None:
        """As /quit."""
        self.session.over.set()
