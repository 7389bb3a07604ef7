"""MQTT 3.1.1 and 5: what devices speak."""

from wirelake.dialects.dialect import Dialect

_HERE = "wirelake.dialects.mqtt"
_COLOURS = {"3.1.1": "#ff9da7", "5": "#9c755f"}
_SHARED = frozenset({"acknowledgement of a publish", "client id", "ping"})
_NEW = frozenset({"header", "request/reply", "service", "ttl"})

DIALECTS = tuple(
    Dialect(
        name=f"mqtt-{version}",
        family="mqtt",
        is_newest=version == "5",
        port=1883,
        scanner=f"{_HERE}.scanner:MqttScanner",
        encoder=f"{_HERE}.encoder:MqttEncoder",
        detect=f"{_HERE}.scanner:detect",
        rank=2,
        detect_in_family=f"{_HERE}.scanner:detect_in_family",
        session=f"{_HERE}.session:MqttSession",
        memory=f"{_HERE}.memory:Conversations",
        speech=f"{_HERE}.speech:MqttSpeech",
        abilities=_SHARED | (_NEW if version == "5" else frozenset()),
        introduces_itself=True,
        has_topic_frames=version == "5",  # aliases
        colour=_COLOURS[version],
    )
    for version in ("3.1.1", "5")
)
