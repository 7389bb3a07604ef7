"""Chat over any dialect: a room is a topic, a member is a client (docs/chat.md).

`room` is the protocol and the state of a room, `member` a client that takes part, `session` what a
person does. `screen`, `plain` and `bots` each show or drive a member.
"""
