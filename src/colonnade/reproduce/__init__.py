"""Experiments: a paper's table measured again, over seeds, beside the paper's own numbers.

An experiment is a file in ``experiments/`` that makes an ``Experiment``; ``colonnade reproduce``
runs it. Every number goes into a JSON file with seeds and revision; tables in the docs are written
from that file, never by hand.
"""

from __future__ import annotations

from colonnade.reproduce.experiment import Experiment, Job, load_experiment, run_experiment
from colonnade.reproduce.tables import check_page, fill_page, markdown_table, plot

__all__ = [
    "Experiment",
    "Job",
    "check_page",
    "fill_page",
    "load_experiment",
    "markdown_table",
    "plot",
    "run_experiment",
]
