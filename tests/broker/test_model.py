"""Sessions and routing against a naive model: lists of filters, and a loop over everybody."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tests.broker.desk import Client, Desk
from wirelake.address import matches
from wirelake.dialects import DIALECTS
from wirelake.message import Message, Op

ADDRESSES = st.sampled_from(["a", "b", "a/b", "a/b/c", "/a", "b/"])
FILTERS = st.sampled_from(["a", "b", "+", "#", "a/+", "a/#", "+/b", "/+", "a/b/c", "b/"])
PAYLOADS = st.binary(max_size=40)


class Model:
    """What a client should have got, worked out the plain way."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.filters: list[str] = []
        self.expected: list[bytes] = []


class Broker(RuleBasedStateMachine):
    """Clients of all dialects come, subscribe, publish in batches, and go."""

    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk()
        self.models: list[Model] = []
        self.names = 0

    @rule(target=clients, dialect=st.sampled_from(list(DIALECTS)))
    def come(self, dialect: str) -> Model:
        self.names += 1
        model = Model(self.desk.client(dialect, f"client-{self.names}", "sub"))
        self.models.append(model)
        return model

    @rule(model=clients, filter=FILTERS)
    def subscribe(self, model: Model, filter: str) -> None:
        model.client.send(Message(op=Op.SUBSCRIBE, address=filter))
        if filter not in model.filters:
            model.filters.append(filter)

    @rule(model=clients, filter=FILTERS)
    def unsubscribe(self, model: Model, filter: str) -> None:
        model.client.send(Message(op=Op.UNSUBSCRIBE, address=filter))
        if filter in model.filters:
            model.filters.remove(filter)

    @rule(
        dialect=st.sampled_from(list(DIALECTS)),
        batch=st.lists(st.tuples(ADDRESSES, PAYLOADS), min_size=1, max_size=8),
        cut=st.integers(0, 200),
    )
    def publish(self, dialect: str, batch: list[tuple[str, bytes]], cut: int) -> None:
        self.names += 1
        publisher = self.desk.client(dialect, f"client-{self.names}")
        publisher.cut = cut
        publisher.send(*[Message(address=address, payload=payload) for address, payload in batch])
        publisher.session.lost("done")
        for model in self.models:
            for address, payload in batch:
                if any(matches(filter, address) for filter in model.filters):
                    model.expected.append(payload)

    @rule(model=consumes(clients))
    def go(self, model: Model) -> None:
        self.check(model)
        model.client.session.lost("gone")
        self.models.remove(model)

    @rule(seconds=st.floats(0.1, 20))
    def wait(self, seconds: float) -> None:
        self.desk.pass_time(seconds, step=5)

    @invariant()
    def everybody_has_what_is_theirs(self) -> None:
        for model in self.models:
            self.check(model)

    def check(self, model: Model) -> None:
        assert model.client.payloads() == model.expected
        model.expected.clear()


TestBroker = Broker.TestCase
TestBroker.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
