"""The description and the interface are the same thing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import (
    negative_data_rejection,
    not_a_server_error,
    positive_data_acceptance,
)

from tests.http.house import House
from wirelake.http.app import routes
from wirelake.http.openapi import description
from wirelake.journal.engine import Engine


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    """A broker that keeps everything in memory, with something in it."""
    with House(None, engine=Engine.in_memory(partitions=2)) as opened:
        opened.put("/v1/queues/jobs")
        opened.put("/v1/store/key", b"value")
        opened.post("/v1/publish/jobs", b"1")
        opened.post("/v1/publish/topic", b"1")
        yield opened


def test_every_route_is_described_and_nothing_else(house: House) -> None:
    api = house.http._api
    assert api is not None
    served = {
        (re.sub(r":path}", "}", route.path), method.lower())
        for route in routes(api)
        for method in route.endpoints
    }
    described = {
        (path, method) for path, methods in description()["paths"].items() for method in methods
    }
    assert served == described


def test_every_path_has_its_parameters() -> None:
    for path, methods in description()["paths"].items():
        for operation in methods.values():
            named = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
            assert named == set(re.findall(r"{(\w+)}", path))


def test_the_pages_name_every_operation(house: House) -> None:
    page = house.get("/docs").body.decode()
    for path, methods in house.get("/openapi.json").json["paths"].items():
        for method in methods:
            assert f"{method.upper()} {path}" in page
    assert "/docs" in house.get("/").body.decode()


@schemathesis.serializer("application/vnd.apache.arrow.stream")
def serialize_rows(context: Any, value: Any) -> bytes:
    """What schemathesis makes up is no Arrow, whatever it is."""
    return value if isinstance(value, bytes) else str(value).encode()


# What can be done to a valid address depends on what is there: whether it is a queue, say; and one
# that is full is `busy`, which is 503.
NOT_TOLD_BY_A_SCHEMA = [positive_data_acceptance, not_a_server_error]

schema = schemathesis.openapi.from_dict(description())


@pytest.mark.slow
@schema.exclude(path=["/v1/events", "/v1/live"]).parametrize()
@settings(
    max_examples=25,
    derandomize=True,  # what is found here must be found again
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_one_that_is_described(case: schemathesis.Case[Any], house: House) -> None:
    excluded = list(NOT_TOLD_BY_A_SCHEMA)
    if case.operation.headers:
        excluded.append(negative_data_rejection)  # any request may have headers that nobody knows
    response = case.call_and_validate(base_url=house.url, excluded_checks=excluded)
    assert response.status_code != 500
