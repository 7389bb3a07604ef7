"""The figures and the summary of the live view."""

from __future__ import annotations

import pytest

from wirelake.errors import EngineError
from wirelake.live.board import Board, told_by
from wirelake.live.figures import Figures, read_figures
from wirelake.testing import Broker

FIGURES = """\
wirelake_received_total {received}
wirelake_delivered_total 2.0
wirelake_clients{{dialect="mfp-1"}} 3.0
wirelake_queue_ready{{queue="a \\"b\\""}} 4.0
wirelake_queue_held{{queue="a \\"b\\""}} 5.0
wirelake_log_next{{partition="0"}} 60.0
wirelake_log_next{{partition="1"}} 40.0
wirelake_query_lag{{partition="0",query="land-lake"}} 10.0
wirelake_query_lag{{partition="1",query="land-lake"}} 15.0
wirelake_query_lag{{partition="0",query="somebody"}} 99.0
wirelake_refused_total{{reason="not_found"}} 7.0
"""


def test_rates_are_differences_and_a_restart_is_not_negative() -> None:
    board = Board()
    for at, received in enumerate([100, 150, 350, 20]):
        board.add(Figures.parse([FIGURES.format(received=received)], "land-lake", float(at)))
    assert board.rates("received") == [50, 200, 0]
    summary = "3 clients, 83 messages/s in, 0 out, 9 messages in queues, log 0 bytes"
    assert board.summary() == f"{summary}, 75 rows landed, 25 to go, 7 refused"


@pytest.mark.parametrize(
    ("rows", "lag", "landed"), [(0, None, True), (5, None, False), (5, 5, False), (5, 0, True)]
)
def test_there_is_nothing_to_land_when_all_has_landed_or_nothing_was_said(
    rows: int, lag: int | None, landed: bool
) -> None:
    text = f'wirelake_log_next{{partition="0"}} {rows}\n'
    if lag is not None:
        text += f'wirelake_query_lag{{partition="0",query="land-lake"}} {lag}\n'
    assert Figures.parse([text], "land-lake", 0.0).has_all_landed is landed


def test_the_figures_of_a_broker_are_read_and_parsed() -> None:
    with Broker(http=True) as broker:
        figures = read_figures(broker.http_url, "land-lake", "")
        assert (figures.received, figures.queues, figures.lag) == (0, {}, None)
        with pytest.raises(EngineError, match="not_found: "):
            read_figures(f"{broker.http_url}/elsewhere", "land-lake", "")


def test_a_line_of_a_log_is_bad_news_from_a_warning_on() -> None:
    begin = "2026-01-31 12:00:00,123"
    assert told_by(f"{begin} INFO wirelake: stopping") == ("stopping", False)
    assert told_by(f"{begin} WARNING wirelake.net: slow") == ("slow", True)
    assert told_by("Traceback (most recent call last):") == (
        "Traceback (most recent call last):",
        True,
    )
