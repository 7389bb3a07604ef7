"""Seeded schedules of faults on simulated nodes: the history must fit, and service must go on."""

from __future__ import annotations

import os

import pytest

from tests.cluster.history import check
from tests.cluster.simulation import Simulation

#: Schedules of each kind; WIRELAKE_SCHEDULES asks for more.
SCHEDULES = int(os.environ.get("WIRELAKE_SCHEDULES", "60"))
#: Where the seeds begin.
FIRST = int(os.environ.get("WIRELAKE_FIRST_SEED", "0"))


def run(seed: int, **options: object) -> Simulation:
    simulation = Simulation(seed, **options)  # type: ignore[arg-type]
    simulation.run()
    return simulation


@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_no_schedule_of_faults_makes_a_wrong_history(nodes: int) -> None:
    for seed in range(FIRST, FIRST + SCHEDULES):
        simulation = run(seed, nodes=nodes)
        faults = check(simulation.history, simulation.found)
        assert not faults, (seed, faults, simulation.faults)
        # Service goes on when the faults have ended: every client got its last answer.
        assert simulation.idle == len(simulation.clients), (seed, simulation.faults)


@pytest.mark.parametrize("flaw", ["lease", "wait", "fence", "early"])
def test_a_broken_rule_makes_a_wrong_history_that_is_found(flaw: str) -> None:
    for seed in range(500):
        simulation = run(seed, flaw=flaw)
        if check(simulation.history, simulation.found):
            return
    pytest.fail(f"500 schedules without the rule of the {flaw}, and nothing was found")
