"""What becomes of published messages: runs of rows go to the audiences of their addresses.

Most runs have one audience (`topics`). Then the frames are brought into each form that its members
need once, and all members of that form get the same bytes. A run with several audiences is gathered
per session, in the order of arrival.
"""

from __future__ import annotations

from array import array
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
    end_of_likes,
    gather,
    is_contiguous,
    span,
    wanting_ack,
    wants_ack,
)
from wirelake.broker.topics import Audience, Inbox, Topics
from wirelake.broker.trace import Trace
from wirelake.broker.vitals import Vitals
from wirelake.dialects import DIALECTS
from wirelake.dialects.codec import encoder
from wirelake.engine.base import Engine
from wirelake.errors import RefusedError
from wirelake.message import Flag, Message
from wirelake.wire import Encoder, FrameTable


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
        self.trace: Trace | None = None  # what an operator looks at, for a while
        self._single = FrameTable(1)
        self._encoders: dict[str, Encoder] = {}
        self._seed, self._split = bytes(8), False

    def publish(
        self, session: Endpoint, table: FrameTable, start: int, end: int, now: float
    ) -> None:
        """Deliver the rows [start, end), all of them publishes of this session."""
        while self._engine.trouble and (middle := end_of_likes(table, start, end)) < end:
            # Those that ask for an acknowledgement are refused, the others are not (decision 47).
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
        if self.trace is not None:
            self.trace.published(session, table, start, end, now)
        sole = routes.sole(start, end)
        if sole == MIXED:
            self._publish_mixed(session, routes, table, start, end, now)
            return
        audience = self._able(self._topics.audiences[sole], table, start, end)
        if audience.members:
            self._deliver(session, audience.forms, audience.policy, table, start, end, None, now)
        if audience.captured:
            self._capture.rows(session, table, start, end, None, now)
        is_topic = audience.refusal is None and audience.inbox is None
        if not is_topic or wants_ack(table, start, end):
            self._settle(session, audience, table, span(start, end), now)

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
        if captured := [rows for audience, rows in parts.values() if audience.captured]:
            whole = sum(map(len, captured)) == end - start
            some = None if whole else array("i", sorted(chain.from_iterable(captured)))
            self._capture.rows(session, table, start, end, some, now)
        for audience, rows in parts.values():
            self._settle(session, audience, table, rows, now)

    def _able(self, audience: Audience, table: FrameTable, start: int, end: int) -> Audience:
        """Return the audience, or a refusal where rows are to be kept and nothing can be."""
        if audience.captured and self._engine.trouble and wants_ack(table, start, end):
            refusal = self._capture.refusal()
            return replace(audience, members=(), captured=False, refusal=refusal)
        return audience

    def _settle(
        self,
        session: Endpoint,
        audience: Audience,
        table: FrameTable,
        rows: array[int],
        now: float,
    ) -> None:
        """Do what is left to do with rows of one audience: queue them, refuse them, answer."""
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
        self, session: Endpoint, inbox: Inbox, table: FrameTable, rows: array[int], now: float
    ) -> None:
        """Put rows into a queue, and answer for each."""
        taken = array("i")
        self._vitals.work += 2 * len(rows)
        for row in rows:
            message = table.message(row)
            try:
                inbox.take(session, message, now)
            except RefusedError as refusal:
                self._vitals.count_refused(refusal.code)
                if message.flags & Flag.ACK:
                    session.refuse(message, refusal)
                else:
                    session.refuse_unasked(refusal, 1)
            else:
                taken.append(row)
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
            frames = self.frames(session, form, table, start, end, rows)
            marks = self.encoder(form).marks() if _is_personal(form) else None
            for member in members:
                own = frames
                if marks is not None:
                    own = member.own_frames(frames, marks, first=first)
                    first = False
                if frames and self._flow.admits(member, count, policy):
                    member.write(own, policy, session)
                    self._vitals.counters["delivered"] += count
                    member.delivered += count

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
        as_it_came = table is session.table and form == session.form
        if as_it_came and session.forwards_as_is(table, start, end, rows):
            if rows is not None:
                return gather(table, rows)
            if is_contiguous(table, start, end):
                begin = table.frame_at[start]
                stop = table.frame_at[end - 1] + table.frame_len[end - 1]
                return bytes(memoryview(table.buffer)[begin:stop])
        if rows is None:
            rows = span(start, end)
        encode = self.encoder(form)
        encode.origin = session.client_id.encode()
        frames = encode.encode(table, rows)
        for reason, count in encode.skipped.items():
            self._vitals.count_dropped(f"untranslatable_{reason}", count)
        encode.skipped.clear()
        return frames

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
    return DIALECTS[form.partition("+")[0]].per_receiver
