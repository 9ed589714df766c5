"""Real processes: yesterday's model is served while today's is trained, by the same agents."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

from agents import hub_of
from colonnade.fabrics.grpc.hub_lane import HubLane
from colonnade.federate.agent_lanes import SERVING_LANES
from colonnade.federate.opened_hub import open_hub
from colonnade.federate.training import train_over
from colonnade.run.spec import read_spec
from colonnade.serve.federation_serving import FederationLoader
from colonnade.serve.run_serving import ServeSettings
from e2e.organisations import HOLDER, PARTIES
from fault.absences import ENDLESS, eventually, num_done
from networks import QUICK
from serving import running


def is_polite(thread: int) -> bool:
    return os.sched_getscheduler(thread) == os.SCHED_BATCH


def test_a_training_and_a_service_share_the_agents(make: Any) -> None:
    organisations = make(method="laser", combine="mean", exchanges=ENDLESS, serves=True)
    yesterday = organisations.root / "yesterday"
    with hub_of(organisations) as hub:
        spec = read_spec(organisations.config)
        spec = replace(spec, stop=replace(spec.stop, exchanges=2))
        train_over(hub, spec, HOLDER, yesterday, alignments=organisations.federation / "alignments")
    training = organisations.start_hub()
    agents = [organisations.start_party(name) for name in PARTIES]
    federation = organisations.federation
    with open_hub(federation, links=QUICK, serves=True, enrols=False) as hub:
        loader = FederationLoader(
            [HubLane(hub, number) for number in SERVING_LANES],
            federation,
            yesterday,
            organisations.root / "bank.csv",
            ServeSettings(id_column="id"),
        )
        with running(loader.first(), load=loader) as one:

            def parties_of(name: str) -> list[str]:
                status, content = one.predict(name)
                assert status == 200, organisations.logs()
                return sorted(content["predictions"][0]["parties"])

            names = (organisations.root / "bank.csv").read_text().split("\n")[1:11]
            everybody = [name.split(",")[0] for name in names]
            asked = [parties_of(name) for name in everybody]
            # The threads that train interrupt nobody; those that answer, and the links, may.
            eventually(organisations, lambda: is_polite(training.pid))
            for process in (training, *agents):
                numbers = [int(item.name) for item in Path(f"/proc/{process.pid}/task").iterdir()]
                assert is_polite(process.pid)
                assert sum(map(is_polite, numbers)) < len(numbers) / 2
            done = num_done(organisations)
            eventually(organisations, lambda: num_done(organisations) > done + 5)
            # A training that stands still, or ends, is nothing to the service.
            training.signal(signal.SIGSTOP)
            training.wait_until_stopped(20)
            assert [parties_of(name) for name in everybody] == asked
            training.kill()
            assert [parties_of(name) for name in everybody] == asked
