"""Every experiment loads and says what it measures; the quickest run from end to end."""

import importlib
import json
from pathlib import Path

import pytest

from colonnade.data.datasets import is_available
from colonnade.reproduce import load_experiment, markdown_table, run_experiment

DIRECTORY = Path(__file__).parents[2] / "experiments"
NAMES = sorted(
    path.stem.replace("_", "-") for path in DIRECTORY.glob("*.py") if path.stem[0] != "_"
)


def needs(name):
    if not is_available(name):
        pytest.skip(f"the files of '{name}' are not here; set COLONNADE_DATA to run this")


def test_there_is_an_experiment_for_every_table_promised():
    assert set(NAMES) >= {
        "easter-table2",
        "easter-table2-cifar10",
        "easter-table2-cvfl",
        "easter-table2-resnets",
        "easter-table3",
        "easter-table4",
        "flex-adaptive",
        "flex-bursts",
        "flex-table2",
        "flex-table3",
        "flex-table4",
        "laser-beta",
        "laser-table1",
        "laser-views",
        "laser-weights",
        "thesis-baselines",
        "thesis-delays",
        "thesis-fedbcd",
        "vafl-async",
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_loads_with_a_place_of_its_own_for_each_cell(name):
    experiment = load_experiment(name, DIRECTORY)
    assert experiment.name == name
    assert experiment.title
    assert experiment.note
    assert experiment.seeds >= 3
    keys = [list(job.coordinates) for job in experiment.jobs]
    places = [tuple(job.coordinates.values()) for job in experiment.jobs]
    assert all(item == keys[0] for item in keys)
    assert len(places) == len(set(places))


@pytest.mark.parametrize(("name", "dataset"), [("thesis-delays", "qoe"), ("flex-table2", "mfeat")])
def test_quick_runs_go_from_end_to_end(name, dataset, tmp_path):
    needs(dataset)
    experiment = load_experiment(name, DIRECTORY)
    out = tmp_path / "results.json"
    outcome = run_experiment(experiment, out=out, fast=True)
    assert outcome["finished"]
    assert json.loads(out.read_text(encoding="utf-8")) == outcome
    for cell in outcome["cells"]:
        assert [run["seed"] for run in cell["runs"]] == [0]
        assert experiment.metric in cell["runs"][0]
    table = markdown_table(outcome)
    assert table.count("\n|") == len(experiment.jobs) + 2


def test_rates_are_looked_for_until_the_best_is_inside():
    load_experiment("flex-table2", DIRECTORY)  # puts what experiments share on the path
    common = importlib.import_module("_common")
    tried = []

    def exchanges_at(rates):
        tried.append(rates)
        return int(10_000 * (abs(rates[0] - 1.0) + abs(rates[1] - 0.003))) + 1

    assert common.best_rates([(0.03, 0.1), (0.03, 0.1)], exchanges_at) == (1.0, 0.003)
    assert {rates[0] for rates in tried} >= {0.3, 1.0, 3.0}
    assert {rates[1] for rates in tried} >= {0.001, 0.003, 0.01}
    assert len(tried) == len(set(tried))
    # Where no rate reaches the target there is no direction to go.
    assert common.best_rates([(0.03, 0.1)], lambda rates: None) == (0.03,)
    assert common.TUNING_SEED not in range(100)


def test_sleeping_parties_hold_up_the_synchronous_method_only():
    needs("qoe")
    jobs = {
        tuple(job.coordinates.values()): job
        for job in load_experiment("thesis-delays", DIRECTORY).jobs
    }
    assert jobs[2, "async", "round-robin"].measure(0, True)["ratio"] < 1.2
    assert jobs[2, "sync", "round-robin"].measure(0, True)["ratio"] > 20


def test_synchronous_exchanges_take_what_the_paper_says():
    """Flex-VFL, section VII A: the round trip, plus the timeout or the slowest party's steps."""
    needs("mfeat")
    load_experiment("flex-table3", DIRECTORY)  # makes its neighbour importable
    flex = importlib.import_module("_flex")
    for method, work in {"P-BCD": 4, "Sync-Min": 20, "Sync-Max": 60, "Flex": 20}.items():
        assert flex.units_per_exchange(3, method, 10, 20) == 10 + work


def test_every_network_of_easters_tables_is_drawn_with_every_seed():
    load_experiment("easter-table3", DIRECTORY)  # makes its neighbour importable
    easter = importlib.import_module("_easter")
    drawn = [easter.drawn_networks(easter.SMALL, seed) for seed in range(20)]
    assert all(len(four) == 4 and {*four} == {*easter.SMALL} for four in drawn)
    assert {four[0] for four in drawn} == {*easter.SMALL}
    assert drawn[3] == easter.drawn_networks(easter.SMALL, 3)


@pytest.mark.parametrize("name", ["easter-table2", "easter-table3", "easter-table4"])
def test_every_row_of_easters_tables_can_be_measured(name):
    needs("mnist")
    # One data set and one network: reading the pictures is what takes time.
    jobs = [
        job
        for job in load_experiment(name, DIRECTORY).jobs
        if (job.coordinates["data set"], job.coordinates["network"]) == ("MNIST", "MLP")
    ]
    assert len(jobs) == 4
    for job in jobs:
        assert 0 < job.measure(0, True)["accuracy"] < 100


def test_one_training_serves_every_inference_drawing_and_two_methods():
    needs("mfeat")
    jobs = [
        job
        for job in load_experiment("laser-views", DIRECTORY).jobs
        if job.coordinates["task"] == "mfeat" and job.coordinates["train p"] == 0.5
    ]
    laser = importlib.import_module("_laser")
    laser.measured.cache_clear()
    for job in jobs:
        if job.coordinates["method"] in ("Local", "Ensemble"):
            assert 0 < job.measure(0, True)["quality"] <= 100
    known = laser.measured.cache_info()
    assert (known.misses, known.hits) == (1, 3)
