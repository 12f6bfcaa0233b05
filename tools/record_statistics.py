"""Record what rliable and marl-eval say about fixed made-up evaluations: ``tests/data/statistics.json``.

rliable 1.2.0 needs pandas below 3, id-marl-eval 0.0.4 asks for pandas 1.4.4 and is content with 2. In an environment of
their own, where Shoal need not be installed:

    pip install "pandas<3" rliable colorama colorcet seaborn && pip install --no-deps id-marl-eval
    python tools/record_statistics.py                                    # records
    python tools/record_statistics.py runs/benchmark/quick/evaluations.json  # does marl-eval's loader take this file?
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from marl_eval.utils.data_processing_utils import create_matrices_for_rliable, data_process_pipeline
from marl_eval.utils.diagnose_data_errors import DiagnoseData
from rliable import library, metrics

from shoal.config.words import Parser

METRIC = "mean_episode_return"
DATA = Path(__file__).parent.parent / "tests" / "data" / "statistics.json"


def made_up() -> dict:
    """Three algorithms that learn on three tasks of unlike scale; ties, and one that is worse at the end."""
    rng = np.random.default_rng(7)
    raw: dict = {}
    for t, (scale, shift) in enumerate([(1.0, 0.0), (40.0, -80.0), (0.02, 3.0)]):
        for a, name in enumerate(("alpha", "beta", "gamma")):
            runs = {}
            for seed in range(6):
                skill = rng.normal(0.3 + 0.15 * ((a + t) % 3), 0.15)
                record = {}
                for step in range(1, 6):
                    values = shift + scale * (skill * np.sqrt(step) + rng.normal(0, 0.1, 4))
                    record[f"step_{step}"] = {"step_count": 1000 * step, METRIC: values.round(2).tolist()}
                values = shift + scale * (skill * 2.2 + rng.normal(0, 0.1, 8))
                record["absolute_metrics"] = {METRIC: values.round(2).tolist()}
                runs[f"seed_{seed}"] = record
            raw.setdefault("made", {}).setdefault(f"task_{t}", {})[name] = runs
    return raw


def loaded(raw: dict, environment: str) -> tuple[dict, dict]:
    """marl-eval's matrices ``[R, T]`` of the absolute metric and ``[R, T, C]`` of the curves, normalised."""
    processed = data_process_pipeline(raw, [METRIC])
    scores, curves = create_matrices_for_rliable(processed, environment.lower(), [METRIC])
    return scores[f"mean_norm_{METRIC}"], curves[f"mean_norm_{METRIC}"]


def estimate(scores: dict, statistic, reps: int = 20_000) -> dict:
    """rliable's point and interval, by key."""
    np.random.seed(0)  # noqa: NPY002 - what rliable draws from
    points, intervals = library.get_interval_estimates(scores, statistic, reps=reps)
    return {key: {"value": np.atleast_1d(points[key]).tolist(), "interval": intervals[key].tolist()} for key in points}


def record() -> None:
    raw = made_up()
    scores, curves = loaded(raw, "made")
    every = (
        metrics.aggregate_iqm,
        metrics.aggregate_median,
        metrics.aggregate_mean,
        metrics.aggregate_optimality_gap,
    )
    taus = np.linspace(0, 1, 21)
    names = list(scores)
    pairs = {f"{x} {y}": (scores[x], scores[y]) for x in names for y in names if x != y}
    out = {
        "evaluations": raw,
        "scores": {name: matrix.tolist() for name, matrix in scores.items()},
        "curves": {name: tensor.tolist() for name, tensor in curves.items()},
        "aggregates": estimate(scores, lambda x: np.array([statistic(x) for statistic in every])),
        "taus": taus.tolist(),
        "profiles": estimate(scores, lambda x: library.score_distributions(x, taus), reps=10_000),
        "improvement": estimate(pairs, metrics.probability_of_improvement, reps=10_000),
        "efficiency": estimate(
            curves, lambda x: np.array([metrics.aggregate_iqm(x[..., i]) for i in range(x.shape[-1])]), reps=10_000
        ),
    }
    DATA.write_text(json.dumps(out) + "\n")
    print(DATA)


def check(path: str) -> None:
    """Whether marl-eval's own loader and its own diagnosis are content with a file."""
    raw = json.loads(Path(path).read_text())
    verdict = DiagnoseData(raw).check_data()
    for environment in raw:
        scores, curves = loaded(raw, environment)
        content = all(verdict[environment.lower()].values())
        for name, matrix in scores.items():
            assert np.isfinite(matrix).all() and np.isfinite(curves[name]).all(), name
            print(f"{environment}: {name}: scores {matrix.shape}, curves {curves[name].shape}, content: {content}")


if __name__ == "__main__":
    parser = Parser(__doc__)
    parser.add_argument("file", nargs="?", help="that marl-eval shall load; without one, figures are recorded")
    options = parser.parse_args()
    if options.file:
        check(options.file)
    else:
        record()
