"""How clients speak mfp."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from msgspec.structs import replace

from wirelake.client.speech import Ask, Heard, Sort, Speech
from wirelake.errors import ConfigError, RefusedError
from wirelake.message import Flag, Message, Op, Parameters
from wirelake.wire import Encoder

#: A connection-id, `name` or `name:token`, has this many UTF-16 code units.
_ID_UNITS = range(4, 33)


class MfpSpeech(Speech):
    """mfp: frames have a uid, and an acknowledgement is SUCCESS or FAIL for one."""

    def encoder(self) -> Encoder:
        """A new encoder, whose own uids are not those made here."""
        made = super().encoder()
        made.prepare(secrets.token_bytes(8), split=False)
        return made

    def new_id(self) -> str:
        """A uid."""
        return f"{self._seed.hex()}{next(self._made):016x}"

    def greet(self, client_id: str, token: str, role: str) -> Iterator[Ask]:
        """A handshake as PUB or SUB; the connection-id has the token in it (spec: mfp 8)."""
        name = f"{client_id}:{token}" if token else client_id
        said = Parameters(connection=role)
        yield self.control(Message(op=Op.HANDSHAKE, source=name, parameters=said))

    def publish(self, message: Message, ack: bool) -> Ask:
        """Publish, under a uid of our own; the encoder sets the topic first, where it changes."""
        asking = super().publish(replace(message, id=""), ack)
        try:
            message.payload.decode()
        except UnicodeDecodeError:
            return asking
        return Ask(replace(asking.message, flags=asking.message.flags | Flag.TEXT), asking.key)

    def control(self, message: Message) -> Ask:
        """All options and handshakes are acknowledged."""
        number = self.new_id()
        return Ask(replace(message, id=number), f"id:{number}")

    def hear(self, message: Message) -> Heard:
        """What a message from the broker is."""
        match message.op:
            case Op.PUBLISH:
                return Heard(Sort.DELIVERY)
            case Op.OK:
                return Heard(Sort.ANSWER, f"id:{message.id}")
            case Op.ERROR:
                refusal = RefusedError("bad_request", "the broker said FAIL; mfp has no reasons")
                return Heard(Sort.ANSWER, f"id:{message.id}", refusal)
        return Heard(Sort.OTHER)


def identity(client_id: str, token: str) -> str:
    """Return the client id, a made-up one if there is none; a connection-id has 4 to 32 units."""
    if ":" in client_id:
        raise ConfigError("client_id", "has no colon in mfp-1: behind it comes the token")
    client_id = client_id or f"wl-{secrets.token_hex(4)}"
    whole = f"{client_id}:{token}" if token else client_id
    if len(whole.encode("utf-16-be")) // 2 not in _ID_UNITS:
        raise ConfigError("client_id", "with its token, has 4 to 32 characters in mfp-1")
    return client_id
