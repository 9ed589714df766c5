"""The cells of EASTER's Table 2, for whatever data and networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from _easter import Setting, heterogeneous, homogeneous
from colonnade.reproduce import Job

# The paper's names: Local, Pyvertical, Agg_VFL.
BASELINES: Mapping[str, Mapping[str, Any]] = {
    "Local": {"name": "alone"},
    "SplitVFL": {"name": "splitnn"},
    "AggVFL": {"name": "aggvfl", "aggregate": "sum"},
}
EASTER = "EASTER"
NOTE = (
    "Test accuracy in percent. Four parties, a quarter of the picture each; the active one has the "
    "upper left. A baseline has one network at all parties, EASTER each network at least once, "
    "drawn by the seed: one run gives its row, a cell being the mean over the parties with that "
    "network. SGD at the paper's rate 0.05 with momentum 0.9, batch 128. SplitVFL is the paper's "
    "Pyvertical; AggVFL adds up logits. C_VFL is in easter-table2-cvfl."
)


def jobs(
    settings: Mapping[str, Setting],
    networks: Sequence[str],
    paper: Mapping[tuple[str, str], Sequence[float]],
    methods: Mapping[str, Mapping[str, Any]] = {**BASELINES, EASTER: {"name": "easter"}},
) -> list[Job]:
    """One cell for each data set, method and network."""
    made = []
    for dataset, setting in settings.items():
        for method, own in methods.items():
            for place, network in enumerate(networks):

                def measure(
                    seed: int,
                    fast: bool,
                    setting: Setting = setting,
                    differs: bool = method == EASTER,
                    own: Mapping[str, Any] = own,
                    network: str = network,
                ) -> dict[str, float | None]:
                    if differs:
                        return heterogeneous(setting, own, networks, network, seed, fast)
                    return homogeneous(setting, own, network, seed, fast)

                made.append(
                    Job(
                        coordinates={"data set": dataset, "method": method, "network": network},
                        measure=measure,
                        paper=paper[dataset, method][place],
                    )
                )
    return made
