"""The guide for operators names every metric there is, with what the broker itself says of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

from prometheus_client.parser import text_string_to_metric_families

import wirelake
from tests.docs.console import ROOT
from wirelake.testing import Broker

PAGE = ROOT / "docs" / "operators.md"


def metrics(url: str) -> Iterator[str]:
    """A row of the table for every metric: its name, its labels, its help."""
    with urlopen(f"{url}/metrics") as answer:
        text = answer.read().decode()
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        named = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        labels = ", ".join(f"`{label}`" for label in named)
        yield f"| `{name}` | {labels} | {family.documentation} |"


def test_every_metric_is_in_the_guide_as_the_broker_describes_it(tmp_path: Path) -> None:
    with (
        Broker(http=True, data=tmp_path) as broker,
        wirelake.connect_sync(broker.url("kobold-2")) as client,
    ):
        client.queue("jobs").put(b"1")
        progress = json.dumps({"0": 0, "1": 0, "2": 0, "3": 0}).encode()
        place = f"{broker.http_url}/v1/progress/report"
        urlopen(Request(place, progress, {"Content-Type": "application/json"})).close()
        rows = list(metrics(broker.http_url))
    told = re.findall(r"^\| `wirelake_\w+` \|.*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    # What is counted by reason has no label before anything has happened.
    assert [row.replace("| `reason` |", "|  |") for row in told] == rows
    assert len([row for row in told if "| `reason` |" in row]) == 4
