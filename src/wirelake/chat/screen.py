"""The chat on a terminal: rooms on the left, history in the middle, members on the right.

Everything works from the keyboard. Colours are the terminal's own sixteen, so they fit any
background; nothing is told by colour alone. An event only marks the screen as stale. It is drawn
from the rooms at most thirty times a second, so a flood of messages cannot keep it busy.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import ClassVar
from zlib import crc32

from rich.cells import cell_len
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
from wirelake.chat.room import BREAK, MARKS, Entry, Kind, Room, Tick, mentions
from wirelake.chat.session import NAMES, Session
from wirelake.errors import WirelakeError

FRAME = 1 / 30  # seconds
MARGIN = 6  # the time, and what is below it
#: Columns for names: at most, and where the window is narrow.
NAMES_WIDE, NAMES_NARROW = 14, 8
#: The terminal's own colours but black, white and grey, those that are easy to tell apart first.
NAME_COLOURS = (
    "cyan", "green", "magenta", "yellow", "blue", "red", "bright_cyan", "bright_green",
    "bright_magenta", "bright_yellow", "bright_blue", "bright_red",
)  # fmt: skip
#: Columns beside the borders of the list of members, and where the window is wide.
ROSTER, ROSTER_WIDE = 17, 27
#: Seconds between two looks at which rooms there are.
LOOK_AROUND = 30.0
#: The end of a line, in a prompt that has one line.
RETURN = "⏎"
TICK_STYLES = {Tick.FAILED: "bold red", Tick.TAKEN: "cyan", Tick.SEEN: "bold green"}
MAX_INPUT = 5000
MAX_RECALLED = 100
MAX_COLOURED = 1000  # names


class History(ScrollView, can_focus=False):
    """The entries of a room, wrapped to the width; scrolls along if the end was in view."""

    def __init__(self, colours: Colours) -> None:
        super().__init__(id="history")
        self._colours = colours
        self._names = 0  # columns
        self._drawn: dict[Entry, tuple[Tick | None, list[Strip]]] = {}
        self._lines: list[Strip] = []
        self._width = 0
        self._room: Room | None = None
        self.follows = True  # the end

    def draw(self, room: Room, me: str) -> None:
        """Show a room; wraps only entries that are new or changed."""
        self.follows |= room is not self._room
        width = self.scrollable_content_region.width
        most = NAMES_WIDE if width >= 50 else NAMES_NARROW
        talk = (
            cell_len(one.name or "?") for one in room.entries if one.kind in (Kind.SAY, Kind.MSG)
        )
        names = min(max(talk, default=0), most)
        if (width, names) != (self._width, self._names):
            self._drawn, self._width, self._names = {}, width, names
        drawn = {}
        self._lines = []
        day = None
        for entry in room.entries:
            known = self._drawn.get(entry)
            if known is None or known[0] is not entry.tick:
                known = (entry.tick, self._wrap(entry, me))
            drawn[entry] = known
            if entry.at.date() != day and (day is not None or entry.is_old):
                self._lines.append(self._rule(f"{entry.at:%A, %d %B %Y}"))
            if entry is room.new:
                self._lines.append(self._rule("new", "bold yellow"))
            day = entry.at.date()
            self._lines += known[1]
        self._drawn, self._room = drawn, room
        self.virtual_size = Size(width, len(self._lines))
        if self.follows:
            self.scroll_end(animate=False)
        self.refresh()

    def turn_pages(self, step: int) -> None:
        """Scroll by pages; at the end, follow new entries again."""
        self.scroll_relative(y=step * (self.size.height - 1), animate=False, immediate=True)
        self.follows = self.is_vertical_scroll_end

    def _rule(self, words: str, style: str = "bright_black") -> Strip:
        """A line across the history with words in it."""
        line = Text(f"── {words} ".ljust(max(self._width, 8), "─"), style, end="")
        line.truncate(max(self._width, 8))
        return Strip(list(line.render(self.app.console)))

    def _wrap(self, entry: Entry, me: str) -> list[Strip]:
        """An entry as lines: the time, the name to the right of its column, and the text."""
        name, text = as_line(entry, me, self._colours, self._names)
        margin = MARGIN + name.cell_len
        lines = text.wrap(self.app.console, max(self._width - margin, 8))
        strips = []
        for number, line in enumerate(lines):
            line.rstrip()
            if number:
                whole = Text.assemble(" " * margin, line, end="")
            else:
                at = (f"{entry.at:%H:%M} ", "bright_black")
                whole = Text.assemble(at, name, line, end="")
            strips.append(Strip(list(whole.render(self.app.console))))
        return strips

    def render_line(self, y: int) -> Strip:
        """The line at row `y` of the view."""
        y += self.scroll_offset.y
        line = self._lines[y] if y < len(self._lines) else Strip.blank(self.size.width)
        return line.crop_extend(0, self.size.width, self.rich_style).apply_style(self.rich_style)


def as_line(entry: Entry, me: str, colours: Colours, width: int) -> tuple[Text, Text]:
    """An entry as coloured text: a name in a column of this width, or a mark; and the rest."""
    text = entry.text.replace(BREAK, "\n")
    if entry.kind is None:
        style = "bright_black italic"
        return Text("· ", style), Text(text, style)
    is_own = entry.tick is not None
    colour = "bold" if is_own else f"bold {colours.of(entry.name)}"
    called = not is_own and (mentions(entry.text, me) or bool(entry.to))
    style = "bold yellow" if called else "italic" if entry.kind is Kind.ME else ""
    name = Text(entry.name, colour) if entry.name else Text("?", "bold yellow")
    line = Text()
    if entry.kind is Kind.ME:
        column = Text("* ", "bold")
        line.append_text(name).append(" ")
    else:
        name.truncate(width, overflow="ellipsis")
        column = Text(" " * (width - name.cell_len)).append_text(name).append("  ")
    if entry.to:
        line.append(f"→ {'you' if not is_own else entry.to}  ", "bold magenta")
    line.append(text, style)
    if entry.tick is not None:
        line.append(f" {MARKS[entry.tick]}", TICK_STYLES.get(entry.tick, "bright_black"))
        line.append(f" {entry.why}" if entry.why else "", "red")
    return column, line


class Colours:
    """The colours of names: each name its own, as long as there are colours.

    A name prefers the colour that follows from it, so that it is the same on most screens. Beyond
    twelve names, those used by the fewest are used again.
    """

    def __init__(self) -> None:
        self._of: dict[str, str] = {}

    def of(self, name: str) -> str:
        """The colour of a name, which stays the same on this screen."""
        key = name.casefold()
        if key not in self._of:
            if len(self._of) >= MAX_COLOURED:
                self._of.clear()
            used = Counter(self._of.values())
            least = min(used[one] for one in NAME_COLOURS)
            first = crc32(key.encode()) % len(NAME_COLOURS)
            order = NAME_COLOURS[first:] + NAME_COLOURS[:first]
            self._of[key] = next(one for one in order if used[one] == least)
        return self._of[key]


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

    class TooLong(Message):
        """Something was pasted that is too long."""

        def __init__(self, length: int) -> None:
            super().__init__()
            self.length = length

    def __init__(self) -> None:
        super().__init__(id="prompt", max_length=MAX_INPUT, select_on_focus=False, compact=True)
        self._typed: list[str] = []
        self._place = 0
        self.names: list[str] = []  # of those who are here
        self.rooms: list[str] = []  # that can be joined

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
            self.post_message(self.Typed(self.value.replace(RETURN, "\n")))
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
        elif before.startswith("/join "):
            found = complete(word.removeprefix("#"), self.rooms)
        else:
            at = "@" if word.startswith("@") else ""
            found = at + complete(word.removeprefix("@"), self.names)
        self.value = before[:start] + found + self.value[self.cursor_position :]
        self.cursor_position = start + len(found)

    def on_paste(self, event: events.Paste) -> None:
        """Keep pasted lines as lines, shown by a sign; nothing is sent without Enter."""
        event.prevent_default()
        event.stop()
        text = RETURN.join(event.text.strip("\r\n").expandtabs(4).splitlines())
        if len(self.value) + len(text) > MAX_INPUT:
            self.post_message(self.TooLong(len(text)))
        else:
            self.insert_text_at_cursor(text)


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
        (100, "-roomy"),
    ]
    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    #title, #status { height: 1; }
    #title { background: ansi_blue; color: ansi_bright_white; }
    #middle { height: 1fr; }
    #rooms, #here { width: 15; height: 100%; padding: 0 1; }
    #here { width: 20; }
    .-roomy #here { width: 30; }
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
        self._is_away = False  # another window has the keyboard
        self._colours = Colours()
        self._others: list[str] = []  # rooms that we are not in

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
            yield History(self._colours)
            yield Static(id="here")
        yield Prompt()
        yield Static(id="status")

    def on_mount(self) -> None:
        """Draw for the first time, and listen to the keyboard."""
        self.query_one(Prompt).focus()
        self.run_worker(self._type())
        self.run_worker(self._wait_for_the_end())
        self.run_worker(self._look_around())
        self.stirred()

    async def _type(self) -> None:
        """Execute typed lines one at a time."""
        while True:
            await self.session.type(await self._typed.get())
            self.stirred()

    async def _wait_for_the_end(self) -> None:
        await self.session.over.wait()
        self.exit()

    async def _look_around(self) -> None:
        """Keep the list of other rooms up to date."""
        while True:
            self._others = await self.session.other_rooms()
            self.stirred()
            await asyncio.sleep(LOOK_AROUND)

    def on_app_blur(self) -> None:
        """The window is not looked at any more: what comes now is new."""
        self._is_away = True

    def on_app_focus(self) -> None:
        """The window is looked at again."""
        self._is_away = False
        self.member.look_at(self.session.room)
        self.stirred()

    # What happens in the chat

    def is_watching(self, room: Room) -> bool:
        """Whether a room is the current one, and the window is looked at."""
        is_current = self._session is not None and self._session.room is room
        return is_current and not self._is_away

    def added(self, room: Room, entry: Entry) -> None:
        """Ring the bell if the entry has our name in it; draw it."""
        if self._session is not None:
            is_talk = entry.tick is None and entry.kind is not None
            is_for_us = mentions(entry.text, self.member.name) or bool(entry.to)
            self._rings |= is_talk and is_for_us
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
        prompt.rooms = [*self.member.rooms, *self._others]
        prompt.placeholder = f"say something in #{room.name}"
        self.query_one(History).draw(room, name)
        if self._rings:
            self._rings = False
            self.bell()

    def _draw_title(self, room: Room, name: str) -> None:
        left = Text(f" wirelake chat   #{room.name}", "bold")
        if room.topic:
            left.append(f"   {room.topic.replace(BREAK, ' ')}", "not bold")
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
        if others := [one for one in self._others if one not in self.member.rooms]:
            lines.append(Text("others", "bright_black"))
            lines += [Text(f"#{one}", "bright_black") for one in others]
        for line in lines:
            line.truncate(12, overflow="ellipsis")
        self._fill("#rooms", lines)

    def _draw_roster(self, room: Room, me: str) -> None:
        """Who is here, each with the dialect to the right."""
        width = ROSTER_WIDE if self.size.width >= 100 else ROSTER
        lines = [Text("here", "bright_black"), _in_roster(me, "bold", self.member.dialect, width)]
        for one in sorted(room.members.values(), key=lambda one: one.name.casefold()):
            colour = self._colours.of(one.name)
            lines.append(_in_roster(one.name, colour, one.dialect, width))
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

    def on_prompt_too_long(self, event: Prompt.TooLong) -> None:
        """Say that nothing was pasted."""
        self.session.tell(f"{event.length} characters are too many to paste: {MAX_INPUT} are most")

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


def _in_roster(name: str, colour: str, dialect: str, width: int) -> Text:
    """A member and its dialect in a line of this width; a long name is cut before the dialect."""
    told = Text(dialect, "bright_black")
    told.truncate(width // 2 + 4, overflow="ellipsis")
    shown = Text(name, colour)
    shown.truncate(width - told.cell_len - 1, overflow="ellipsis", pad=True)
    return shown.append(" ").append_text(told)
