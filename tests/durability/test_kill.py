"""Nothing that the broker has acknowledged, in whatever dialect, is lost when it is killed."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.durability.conftest import Preload
from tests.durability.ledger import Ledger
from tests.durability.load import Load, besiege, check, served
from tests.journal.test_engine_kill import let_through

KILLS = 6
ALL_KINDS = {"publish", "put", "ack", "nack", "change"}


@pytest.mark.slow
async def test_a_broker_that_is_killed_under_mixed_load_keeps_its_word(tmp_path: Path) -> None:
    ledger = Ledger()
    async with served(tmp_path / "data") as broker:
        await besiege(broker, ledger, KILLS, seed=4)
        await check(broker, ledger)
        assert broker.all_complaints == []
    verdict = ledger.close()
    assert verdict.faults == {}
    assert verdict.answered.keys() == ALL_KINDS
    assert verdict.heard
    assert verdict.redelivered


@pytest.mark.slow
@pytest.mark.parametrize("reached", [0.0, 0.5])
async def test_a_broker_whose_power_failed_keeps_its_word(
    tmp_path: Path, preload: Preload, reached: float
) -> None:
    """Of what was written and not synced, a part has reached the disk."""
    data, shadow = tmp_path / "data", tmp_path / "shadow"
    watching = {
        "LD_PRELOAD": preload("journal/unsynced.c"),
        "WATCHED": str(data),
        "SHADOW": str(shadow),
    }
    chance = random.Random(f"power {reached}")
    ledger = Ledger()
    async with served(data, watching) as broker:
        data.mkdir()
        shutil.copytree(data, shadow)
        await broker.start()
        async with Load(broker, ledger, seed=5).running():
            for _ in range(3):
                await ledger.more_answers(chance.choice((1, 100, 1500)))
                await broker.kill()
                let_through(data, shadow, reached, chance)
                shutil.rmtree(data)
                shutil.copytree(shadow, data)
                await broker.start()
            await ledger.more_answers(200)
        await check(broker, ledger, torn=reached > 0)
        if not reached:
            assert broker.all_complaints == []
    verdict = ledger.close()
    assert verdict.faults == {}
    assert verdict.answered.keys() == ALL_KINDS
