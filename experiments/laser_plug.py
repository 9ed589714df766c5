"""PlugVFL whose label holder is exempt from dropout in training, as published, or is not."""

from __future__ import annotations

import sys
from pathlib import Path

from colonnade.reproduce import Experiment

sys.path.append(str(Path(__file__).parent))
from laser_table1 import FAIR_PLUG, MISSING, PAPER, job


def experiment() -> Experiment:
    return Experiment(
        name="laser-plug",
        title="PlugVFL when nobody is exempt in training",
        metric="quality",
        better="higher",
        along="inference p",
        note=(
            "HAPT, accuracy in %; data, networks and settings as in `laser-table1`, with every "
            "block there in training. PlugVFL drops parties in training with probability 0.3, but "
            "never the label holder's block, which is missing in inference like any other; in the "
            "row 'nobody exempt' that block drops out too."
        ),
        jobs=[
            job(
                "HAPT",
                name,
                0.0,
                inference,
                PAPER["HAPT"][name][at] if name in PAPER["HAPT"] else None,
            )
            for name in ("PlugVFL", FAIR_PLUG)
            for at, inference in enumerate(MISSING)
        ],
        seeds=5,
    )
