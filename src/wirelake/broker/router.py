"""What becomes of published messages: runs of rows go to the audiences of their addresses.

Most runs have one audience (`topics`). Then the frames are brought into each form that its members
need once, and all members of that form get the same bytes. A run with several audiences is gathered
per session, in the order of arrival.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain

from msgspec import structs

from wirelake.broker.capture import Capture
from wirelake.broker.endpoint import Endpoint, Policy
from wirelake.broker.flow import Flow
from wirelake.broker.route import (
    MIXED,
    Routes,
    adjacent,
    end_of_likes,
    gather,
    wanting_ack,
    wants_ack,
)
from wirelake.broker.topics import Audience, Inbox, Topics
from wirelake.broker.vitals import Vitals
from wirelake.dialects import DIALECTS
from wirelake.dialects.codec import encoder
from wirelake.errors import RefusedError
from wirelake.journal.engine import Engine
from wirelake.message import Flag, Message
from wirelake.wire import Encoder, FrameTable
from wirelake.wire.rows import pack

#: The form of other nodes: rows as they are, of whatever dialect.
NODES = "rows"


class Router:
    """Delivers what sessions publish, captures it, and answers the publishers."""

    def __init__(
        self, engine: Engine, vitals: Vitals, flow: Flow, capture: Capture, topics: Topics
    ) -> None:
        self._engine = engine
        self._vitals = vitals
        self._flow = flow
        self._capture = capture
        self._topics = topics
        self._single = FrameTable(1)
        self._encoders: dict[str, Encoder] = {}
        self._seed, self._split = bytes(8), False
        self._skipped = 0  # rows that some form could not say
        # Of the run that is being delivered: the rows that the log gets, in parts, and where they
        # will be in it, once somebody has asked.
        self._captured: Sequence[Sequence[int]] = ()
        self._places: dict[int, tuple[int, int]] | None = None
        #: Told of every run of rows before it is delivered, as a trace is.
        self.on_publish: Callable[[Endpoint, FrameTable, int, int, float], object] | None = None

    def publish(
        self, session: Endpoint, table: FrameTable, start: int, end: int, now: float
    ) -> None:
        """Deliver the rows [start, end), all of them publishes of this session."""
        while self._engine.trouble:
            # Those that ask for an acknowledgement are refused, the others are not (decision 47).
            middle = self._capture.end_of_able(table, start, end_of_likes(table, start, end))
            if middle == end:
                break
            self._publish(session, table, start, middle, now)
            start = middle
        self._publish(session, table, start, end, now)

    def publish_message(self, session: Endpoint, message: Message, now: float) -> None:
        """Publish one message that is in no frame table, with its sender as the source."""
        self._single.fill([structs.replace(message, source=session.client_id)], message.dialect)
        self.publish(session, self._single, 0, 1, now)

    def _publish(
        self, session: Endpoint, table: FrameTable, start: int, end: int, now: float
    ) -> None:
        routes = self._topics.assign(session.rights, table, start, end)
        self._vitals.counters["received"] += end - start
        session.received += end - start
        if self.on_publish is not None:
            self.on_publish(session, table, start, end, now)
        sole = routes.sole(start, end)
        if sole == MIXED:
            self._publish_mixed(session, routes, table, start, end, now)
            return
        audience = self._topics.audiences[sole]
        if self._engine.trouble:
            audience = self._able(audience, table, start, end)
        if audience.members:
            self._captured = (range(start, end),) if audience.captured else ()
            self._places = None
            self._deliver(session, audience.forms, audience.policy, table, start, end, None, now)
        if audience.captured:
            self._capture.rows(session, table, start, end, None, now)
        is_topic = audience.refusal is None and audience.inbox is None and audience.way is None
        if not is_topic or wants_ack(table, start, end):
            self._settle(session, audience, table, range(start, end), now)

    def _publish_mixed(
        self,
        session: Endpoint,
        routes: Routes,
        table: FrameTable,
        start: int,
        end: int,
        now: float,
    ) -> None:
        """Publish rows of several audiences."""
        parts = {}
        for number, rows in routes.groups(start, end).items():
            parts[number] = (self._able(self._topics.audiences[number], table, start, end), rows)
        shares: dict[tuple[Endpoint, Policy], list[int]] = {}
        for number, (audience, _) in parts.items():
            for member in audience.members:
                shares.setdefault((member, audience.policy), []).append(number)
        captured = [rows for audience, rows in parts.values() if audience.captured]
        self._captured, self._places = captured, None
        # Those who get the same rows get them together.
        alike: dict[tuple[Policy, tuple[int, ...]], list[Endpoint]] = {}
        for (member, policy), share in shares.items():
            alike.setdefault((policy, tuple(share)), []).append(member)
        for (policy, numbers), members in alike.items():
            rows = parts[numbers[0]][1]
            if len(numbers) > 1:
                rows = array("i", sorted(chain.from_iterable(parts[one][1] for one in numbers)))
            forms: dict[str, list[Endpoint]] = {}
            for member in sorted(members, key=lambda one: one.number):
                forms.setdefault(member.form, []).append(member)
            self._deliver(session, forms, policy, table, 0, 0, rows, now)
        if captured:
            whole = sum(map(len, captured)) == end - start
            some = None if whole else array("i", sorted(chain.from_iterable(captured)))
            self._capture.rows(session, table, start, end, some, now)
        for audience, rows in parts.values():
            self._settle(session, audience, table, rows, now)

    def _able(self, audience: Audience, table: FrameTable, start: int, end: int) -> Audience:
        """Return the audience, or a refusal where rows are to be kept and nothing can be."""
        able = self._capture.keeps(table, start)
        if not able and audience.captured and wants_ack(table, start, end):
            refusal = self._capture.refusal()
            return replace(audience, members=(), captured=False, refusal=refusal)
        return audience

    def _settle(
        self,
        session: Endpoint,
        audience: Audience,
        table: FrameTable,
        rows: range | array[int],
        now: float,
    ) -> None:
        """Do what is left to do with rows of one audience: queue them, refuse them, answer."""
        if audience.way is not None:
            audience.way.forward(session, table, rows, now)
            return
        asking = wanting_ack(table, rows)
        if audience.inbox is not None:
            self._enqueue(session, audience.inbox, table, rows, now)
        elif audience.refusal is None:
            session.accept_rows(table, asking, kept=audience.captured)
        else:
            self._vitals.count_refused(audience.refusal.code, len(rows))
            for row in asking:
                session.refuse(table.message(row), audience.refusal)
            if len(asking) < len(rows):
                session.refuse_unasked(audience.refusal, len(rows) - len(asking))

    def _enqueue(
        self,
        session: Endpoint,
        inbox: Inbox,
        table: FrameTable,
        rows: range | array[int],
        now: float,
    ) -> None:
        """Put rows into a queue, and answer for each."""
        self._vitals.work += 2 + len(rows) // 2
        try:
            refused = dict(inbox.take_rows(session, table, rows, now))
        except RefusedError as error:
            refused = dict.fromkeys(rows, error)
        for row, refusal in refused.items():
            self._vitals.count_refused(refusal.code)
            if table.flags[row] & Flag.ACK:
                session.refuse(table.message(row), refusal)
            else:
                session.refuse_unasked(refusal, 1)
        taken = array("i", [row for row in rows if row not in refused]) if refused else rows
        session.accept_rows(table, wanting_ack(table, taken), kept=True)

    def _deliver(
        self,
        session: Endpoint,
        forms: dict[str, list[Endpoint]],
        policy: Policy,
        table: FrameTable,
        start: int,
        end: int,
        rows: array[int] | None,
        now: float,
    ) -> None:
        """Write rows [start, end), or these, to the members, once per form."""
        count = end - start if rows is None else len(rows)
        first = True  # TMQ tells the first receiver from the others (spec: tmq 5)
        for form, members in forms.items():
            before = self._skipped
            try:
                frames = self.frames(session, form, table, start, end, rows)
            except Exception as error:
                if not DIALECTS[form.partition("+")[0]].is_foreign:
                    raise
                for member in list(members):
                    member.failed(error)
                continue
            if not frames:
                continue
            skipped = self._skipped - before
            marks = self.encoder(form).marks() if _is_personal(form) else b""
            for member in members:
                own = frames
                if marks:
                    shared = len(members) > 1
                    own = member.own_frames(frames, marks, first=first, shared=shared)
                    first = False
                if self._flow.admits(member, count, policy):
                    if member.observes and not skipped:
                        member.observe(self._find_places(table, rows or range(start, end)))
                    member.write(own, policy, session)
                    self._vitals.counters["delivered"] += count
                    member.delivered += count

    def _find_places(self, table: FrameTable, rows: Sequence[int]) -> list[tuple[int, int] | None]:
        """Where rows that are being delivered will be in the log."""
        if self._places is None:
            self._places = {}
            if self._captured and not self._engine.trouble:
                kept = sorted(chain.from_iterable(self._captured))
                self._places = dict(zip(kept, self._engine.places(table, kept), strict=True))
        return [self._places.get(row) for row in rows]

    def frames(
        self,
        session: Endpoint,
        form: str,
        table: FrameTable,
        start: int,
        end: int,
        rows: array[int] | None,
    ) -> bytes | memoryview:
        """Return the rows as a member of this form gets them: as they came, or translated."""
        if form == NODES:
            some = range(start, end) if rows is None else rows
            return pack(table, some, session.client_id.encode())
        as_it_came = table is session.table and form == session.form
        if as_it_came and session.forwards_as_is(table, start, end, rows):
            if rows is not None:
                return gather(table, rows)
            if frames := adjacent(table, start, end):
                return frames
        encode = self.encoder(form)
        encode.origin = session.client_id.encode()
        encoded = encode.encode(table, range(start, end) if rows is None else rows)
        if encode.skipped:
            for reason, count in encode.skipped.items():
                self._vitals.count_dropped(f"untranslatable_{reason}", count)
                self._skipped += count
            encode.skipped.clear()
        return encoded

    def encoder(self, form: str) -> Encoder:
        """Return the encoder that all members of a form share.

        A form is a dialect, perhaps with a variant of it: `kobold-3+inclusive`.
        """
        if form not in self._encoders:
            dialect, _, variant = form.partition("+")
            made = self._encoders[form] = encoder(dialect, client=False)
            made.set_variant(variant)
            made.prepare(self._seed, split=self._split)
        return self._encoders[form]

    def prepare_encoders(self, seed: bytes, *, split: bool) -> None:
        """Say how new ids begin, and whether long messages are split (spec: mfp 6)."""
        self._seed, self._split = seed, split


@cache
def _is_personal(form: str) -> bool:
    """Do frames of a form have fields that differ from receiver to receiver?"""
    return form != NODES and DIALECTS[form.partition("+")[0]].per_receiver
