"""Experiments: a paper's table measured again, over seeds, beside the paper's own numbers.

An experiment is a file in ``experiments/`` that makes an ``Experiment``; ``colonnade reproduce``
runs it. Every number goes into a JSON file with seeds and revision, and the tables in the docs are
written from that file. The experiments themselves are not in the package.
"""

from __future__ import annotations

from colonnade.reproduce.experiment import Experiment, Job, load_experiment, run_experiment
from colonnade.reproduce.staleness import StaleResult, read_outcome, stale_results, staleness
from colonnade.reproduce.tables import (
    check_page,
    fill_page,
    mark_pages,
    markdown_table,
    plot,
)

__all__ = [
    "Experiment",
    "Job",
    "StaleResult",
    "check_page",
    "fill_page",
    "load_experiment",
    "mark_pages",
    "markdown_table",
    "plot",
    "read_outcome",
    "run_experiment",
    "stale_results",
    "staleness",
]
