"""Do the tests see mistakes? Each of these one-line mistakes is made in a copy of the project, and tests run on it.

    python tools/mutations.py                  # all; results/mutations.json and mutations.md
    python tools/mutations.py --only returns   # those of files whose path holds this word; the others stay recorded

A mistake is caught if a test fails. The same tests first run on the copy without it and must pass, or nothing would be
proven. A mistake that survives needs a test, or the reason why no test can see it (``because``).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "results" / "mutations.json"
TABLE = RECORD.with_suffix(".md")
PATIENCE = 900  # seconds that the tests of one mistake may take; a mistake that makes them hang is caught


class Mutation(NamedTuple):
    """``before`` becomes ``after``; it stands in ``file`` exactly once. ``tests`` are pytest's arguments."""

    file: str
    before: str
    after: str
    tests: str
    because: str = ""  # why no test can see it


PPO = "tests/baselines/test_ppo.py"
RETURNS = "tests/shoal/test_returns.py"
NORMALISATION = "tests/shoal/test_normalisation.py"
WRAPPERS = "tests/envs/test_wrappers.py"
MEMORY = "tests/shoal/test_memory.py"
MPE = "tests/envs/test_mpe.py"
QMIX = "tests/baselines/test_qmix.py"
MAD4PG = "tests/baselines/test_mad4pg.py"
MASAC = "tests/baselines/test_masac.py"
RUNNER = "tests/shoal/test_runner.py"
CHUNK = "tests/shoal/test_chunk.py"
REPLAY = "tests/shoal/test_replay.py"
EVOLVE = "tests/shoal/test_evolve.py"
WRITING = "tests/shoal/test_writing.py"
READING = "tests/shoal/test_reading.py"
BY_HAND = "tests/baselines/test_by_hand.py"

MUTATIONS = [
    # Returns
    Mutation(
        "shoal/rl/returns.py",
        "gamma * jnp.where(terminated, 0.0, next_value) - value",
        "gamma * next_value - value",
        RETURNS,
    ),
    Mutation(
        "shoal/rl/returns.py",
        "decay = gamma * gae_lambda * (1.0 - ended)",
        "decay = gamma * gae_lambda * (1.0 - terminated)",
        RETURNS,
    ),
    Mutation("shoal/rl/returns.py", "decay = gamma * gae_lambda *", "decay = gae_lambda *", RETURNS),
    Mutation(
        "shoal/rl/returns.py",
        "jnp.zeros_like(delta[0]), (delta, decay), reverse=True",
        "jnp.zeros_like(delta[0]), (delta, decay), reverse=False",
        RETURNS,
    ),
    Mutation("shoal/rl/returns.py", "(jnp.where(ended_t, value_t, after) - value_t)", "(after - value_t)", RETURNS),
    Mutation(
        "shoal/rl/returns.py",
        "for _ in range(steps - 1):\n        target",
        "for _ in range(steps):\n        target",
        RETURNS,
    ),
    Mutation(
        "shoal/rl/returns.py",
        "stop = jnp.asarray(ended).at[-1].set(True)  # what comes after this step is not in the sequence",
        "stop = jnp.asarray(ended)",
        RETURNS,
    ),
    Mutation(
        "shoal/rl/returns.py",
        "jnp.where(where, x, 0.0).sum() / jnp.maximum(where.sum(), 1)",
        "jnp.where(where, x, 0.0).sum() / where.size",
        RETURNS,
    ),
    Mutation(
        "shoal/rl/returns.py",
        "centred = x - learners.mean(mean_by(ids, x, where))[ids]",
        "centred = x - x.mean()",
        RETURNS,
    ),
    Mutation(
        "shoal/rl/returns.py",
        "discount * after[1], after[2])",
        "after[1], after[2])",
        f"{RETURNS} {MAD4PG} -k 'n_step or plain_loop or discounted'",
    ),
    # Normalisation
    Mutation(
        "shoal/rl/normalisation.py",
        "jnp.where(weight > 0, rows, 0.0).sum(axis=0)) / safe_count",
        "rows.sum(axis=0)) / safe_count",
        NORMALISATION,
    ),
    Mutation(
        "shoal/rl/normalisation.py",
        "spread += jnp.square(delta) * stats.count * batch_count / safe_total",
        "spread += 0.0 * delta",
        NORMALISATION,
    ),
    Mutation(
        "shoal/rl/normalisation.py",
        "ratio = jnp.sqrt(old.variance / new.variance)[:, None]",
        "ratio = jnp.sqrt(new.variance / old.variance)[:, None]",
        NORMALISATION,
    ),
    Mutation(
        "shoal/rl/normalisation.py",
        "count = jnp.minimum(stats.count + living, BATCHES_KEPT)",
        "count = stats.count + living",
        NORMALISATION,
    ),
    # Wrappers
    Mutation(
        "envs/wrappers.py",
        "(step >= self.horizon)) & jnp.logical_not(timestep.terminated)",
        "(step >= self.horizon))",
        WRAPPERS,
    ),
    Mutation(
        "envs/wrappers.py",
        "(timestep.truncated | (step >= self.horizon))",
        "(timestep.truncated | (step > self.horizon))",
        WRAPPERS,
    ),
    Mutation("envs/wrappers.py", "final_obs=last.obs,", "final_obs=select(ended, first.obs, last.obs),", WRAPPERS),
    Mutation(
        "envs/wrappers.py",
        "final_action_mask=last.action_mask,",
        "final_action_mask=select(ended, first.action_mask, last.action_mask),",
        WRAPPERS,
    ),
    Mutation("envs/wrappers.py", "is_first=ended,", "is_first=last.terminated,", WRAPPERS),
    Mutation(
        "envs/wrappers.py",
        "episode_return=jnp.where(ended[:, None], 0.0, episode_return),",
        "episode_return=episode_return,",
        WRAPPERS,
    ),
    Mutation(
        "envs/wrappers.py",
        "episode_return = state.episode_return + timestep.earned",
        "episode_return = state.episode_return + timestep.reward",
        WRAPPERS,
    ),
    # Memory
    Mutation("shoal/nn/memory.py", "h = jnp.where(first_t, 0.0, h)\n        u_r", "u_r", MEMORY),
    Mutation(
        "shoal/nn/memory.py",
        "return jnp.where(first_t, 0.0, d_h), (d_gates, d_n)",
        "return d_h, (d_gates, d_n)",
        MEMORY,
    ),
    Mutation(
        "shoal/nn/memory.py",
        "ms[length - 1 : -1 : length]",
        "ms[length:-1:length]",
        f"{MEMORY} {QMIX} -k 'sequences or memor'",
    ),
    # Mixers, exploration, distributions
    Mutation(
        "shoal/rl/mixers.py",
        "chosen = jnp.where(earning, chosen, 0.0)",
        "chosen = chosen + 0.0",
        "tests/shoal/test_mixers.py",
    ),
    Mutation(
        "shoal/rl/mixers.py",
        "share = self.members / self.members.sum(axis=1, keepdims=True)",
        "share = self.members * 1.0",
        "tests/shoal/test_mixers.py",
    ),
    Mutation("shoal/rl/mixers.py", "w_1 = _absolute(hyper(", "w_1 = (hyper(", "tests/shoal/test_mixers.py"),
    Mutation(
        "shoal/rl/exploration.py",
        "jnp.argmax(jnp.where(mask, values, -jnp.inf), axis=-1)",
        "jnp.argmax(values, axis=-1)",
        "tests/shoal/test_exploration.py",
    ),
    Mutation(
        "shoal/rl/exploration.py",
        "explore = noise[..., -1:] < epsilon",
        "explore = noise[..., -1:] > epsilon",
        "tests/shoal/test_exploration.py",
    ),
    Mutation(
        "shoal/rl/distributions.py",
        "return -(jnp.exp(log_probs) * log_probs).sum(0)",
        "return (jnp.exp(log_probs) * log_probs).sum(0)",
        "tests/shoal/test_distributions.py",
    ),
    Mutation(
        "shoal/rl/distributions.py",
        "jnp.where(self.mask, log_normal - _log_tanh_slope(raw), 0.0)",
        "jnp.where(self.mask, log_normal, 0.0)",
        "tests/shoal/test_distributions.py",
    ),
    Mutation(
        "shoal/rl/distributions.py",
        "return self.loc + self.scale * noise",
        "return self.loc + jnp.square(self.scale) * noise",
        "tests/shoal/test_distributions.py",
    ),
    # Critics, metrics, evaluation
    Mutation(
        "shoal/rl/critics.py",
        "mine = np.eye(agents, dtype=bool)[..., None]  # [A, A, 1]",
        "mine = ~np.eye(agents, dtype=bool)[..., None]",
        "tests/shoal/test_critics.py",
    ),
    Mutation(
        "shoal/rl/critics.py",
        "return values[..., self.policy_of, np.arange(self.env.num_agents)]",
        "return values[..., self.policy_of, self.policy_of]",
        "tests/shoal/test_critics.py",
    ),
    Mutation(
        "shoal/run/evaluate.py",
        "returns = returns + jnp.where(running[:, None], timestep.earned, 0.0)",
        "returns = returns + timestep.earned",
        RUNNER + " -k evaluation",
    ),
    Mutation(
        "shoal/run/evaluate.py",
        "running = running & ~(timestep.terminated | timestep.truncated)",
        "running = running & ~timestep.terminated",
        RUNNER + " -k evaluation",
    ),
    # Runner
    Mutation(
        "shoal/run/state.py",
        "diverged = diverged | ~all_finite(new.params)",
        "diverged = ~all_finite(new.params)",
        RUNNER,
    ),
    Mutation(
        "shoal/run/sweep.py",
        "point = np.repeat(np.arange(len(points)), seeds)",
        "point = np.tile(np.arange(len(points)), seeds)",
        "tests/shoal/test_sweep.py",
    ),
    # Environments
    Mutation(
        "envs/mpe/world.py",
        "next_vel = vel * (1 - DAMPING) + force * DT",
        "next_vel = vel * (1 - DAMPING) + force",
        MPE,
    ),
    Mutation("envs/mpe/simple_spread.py", "np.fill_diagonal(reach, 0)  # nobody collides with itself", "", MPE),
    # Runs that diverge, evaluations
    Mutation(
        "shoal/run/state.py",
        "better = ~diverged & (mean > state.best_return)",
        "better = mean > state.best_return",
        CHUNK,
    ),
    Mutation("shoal/run/state.py", "evaluation_key=evaluation_key,", "evaluation_key=state.evaluation_key,", CHUNK),
    Mutation(
        "shoal/rl/metrics.py",
        "weights = jnp.where(per_episode, metrics[EPISODES][:, None], 1.0)",
        "weights = jnp.ones_like(metrics.values)",
        "tests/shoal/test_metrics.py",
    ),
    # Replay
    Mutation(
        "shoal/rl/replay.py",
        "priority = state.priority.at[index].set(state.highest)",
        "priority = state.priority.at[index].set(1.0)",
        REPLAY,
    ),
    Mutation(
        "shoal/rl/replay.py",
        "highest = jnp.where(when, jnp.maximum(state.highest, priority.max()), state.highest)",
        "highest = state.highest",
        REPLAY,
    ),
    Mutation(
        "shoal/rl/replay.py",
        "return Sample(items, index, (priority.min() / priority) ** beta)",
        "return Sample(items, index, priority.min() / priority)",
        REPLAY,
    ),
    Mutation(
        "shoal/rl/replay.py", "index = jnp.where(when, index, state.priority.size)  # past the end: dropped", "", REPLAY
    ),
    Mutation("shoal/rl/replay.py", "return jnp.minimum(row * ROW + item, last)", "return row * ROW + item + 1", REPLAY),
    Mutation(
        "shoal/rl/replay.py",
        "return jnp.where(ring.is_full, self.capacity, ring.current_index)",
        "return jnp.int32(self.capacity)",
        REPLAY,
    ),
    Mutation(
        "shoal/rl/replay.py",
        'cleared = state.priority.at[index].set(0.0, mode="drop")',
        "cleared = state.priority",
        REPLAY,
    ),
    # Random numbers
    Mutation(
        "shoal/hashing.py",
        "for salt in (0x63D83595, 0x1B873593)",
        "for salt in (0x63D83595, 0x63D83595)",
        "tests/envs/test_hashing.py",
    ),
    Mutation(
        "shoal/hashing.py",
        "return key if _typed(key) else jax.random.wrap_key_data(key)",
        "return key",
        "tests/envs/test_hashing.py tests/baselines/test_keys.py",
    ),
    # Evolution
    Mutation(
        "shoal/evolve/mutate.py",
        "place = jax.random.uniform(draw_key, shape)",
        "place = jax.random.uniform(chance_key, shape)",
        EVOLVE,
    ),
    Mutation(
        "shoal/evolve/mutate.py", "jnp.clip(value * factor[:, index], low, high)", "value * factor[:, index]", EVOLVE
    ),
    Mutation(
        "shoal/evolve/select.py",
        "lost = population.diverged | ~jnp.isfinite(fitness)",
        "lost = population.diverged",
        EVOLVE,
    ),
    Mutation("shoal/evolve/select.py", "replaced &= ~early | ~jnp.isfinite(fitness)", "replaced &= ~early", EVOLVE),
    Mutation(
        "shoal/evolve/select.py",
        "turn = (population.generation[0] + 1) % frequencies == 0",
        "turn = population.generation[0] % frequencies == 0",
        EVOLVE,
    ),
    Mutation(
        "shoal/evolve/rounds.py",
        "fitness = jnp.where(run.diverged | ~jnp.isfinite(mean), -jnp.inf, mean)",
        "fitness = mean",
        "tests/shoal/test_generations.py",
    ),
    # Folders of strangers, damaged files
    Mutation(
        "shoal/folder/checkpoint.py",
        "path.is_symlink() or path.stat().st_size != size or reading.digest(path) != digest",
        "path.stat().st_size != size",
        WRITING,
    ),
    Mutation("shoal/folder/checkpoint.py", "if reading.digest(path) != digest.hexdigest():", "if False:", WRITING),
    Mutation("shoal/folder/reading.py", "if not stat.S_ISREG(status.st_mode):", "if False:", READING),
    Mutation("shoal/folder/reading.py", "if status.st_size > most:", "if False:", READING),
    Mutation("shoal/folder/reading.py", "if depth > DEPTH:", "if False:", READING),
    Mutation("shoal/folder/reading.py", "if isinstance(event, yaml.AliasEvent) and not aliases:", "if False:", READING),
    Mutation(
        "shoal/config/fields.py", "if not low <= number <= high:", "if number > high:", "tests/shoal/test_config.py"
    ),
    # Algorithm files
    Mutation("baselines/ippo/ippo_ff_mpe.py", "updates=state.updates + 1, key=key)", "updates=state.updates + 1)", PPO),
    Mutation(
        "baselines/mappo/mappo_rnn_smax.py",
        "value_loss = jnp.maximum(value_loss, distance(near - batch.target))",
        "value_loss = jnp.minimum(value_loss, distance(near - batch.target))",
        BY_HAND,
    ),
    Mutation(
        "baselines/mappo/mappo_ff_vmas.py",
        "ended = jnp.broadcast_to(step.ended[..., None], terminated.shape) | terminated",
        "ended = terminated",
        BY_HAND,
    ),
    Mutation(
        "baselines/ippo/ippo_rnn_smax.py",
        "clipped = jnp.clip(ratio, 1.0 - hypers.clip_eps, 1.0 + hypers.clip_eps)",
        "clipped = jnp.clip(ratio, 1.0 - hypers.clip_eps, None)",
        BY_HAND,
    ),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="mistakes in files whose path holds this word")
    parser.add_argument("--jobs", type=int, default=2, help="copies that are tested side by side")
    words = parser.parse_args()
    chosen = [mutation for mutation in MUTATIONS if words.only in mutation.file]
    for mutation in chosen:
        count = (ROOT / mutation.file).read_text().count(mutation.before)
        if count != 1:
            sys.exit(f"{mutation.file}: {mutation.before!r} stands there {count} times, not once")
    with tempfile.TemporaryDirectory() as place:
        copies: Queue[Path] = Queue()
        for number in range(words.jobs):
            copies.put(copy_of_the_project(Path(place) / str(number)))
        with ThreadPoolExecutor(words.jobs) as pool:
            tests = sorted({mutation.tests for mutation in chosen})
            for words_of, result in zip(tests, pool.map(lambda t: on_a_copy(copies, None, t), tests), strict=True):
                if result["caught"]:
                    sys.exit(f"pytest {words_of}: fails without any mistake: {result['by']}")
            results = []
            for result in pool.map(lambda m: on_a_copy(copies, m, m.tests), chosen):
                results.append(result)
                print(line_of(result), flush=True)
                write({(old["file"], old["before"], old["after"]): old for old in [*recorded(), *results]})


def copy_of_the_project(folder: Path) -> Path:
    """The files that git knows, as they are now."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def on_a_copy(copies: Queue[Path], mutation: Mutation | None, tests: str) -> dict[str, Any]:
    """Run tests in a free copy, with a mistake in it or without; what the record keeps of it."""
    folder = copies.get()
    try:
        if mutation is None:
            return run(folder, tests)
        path = folder / mutation.file
        text = path.read_text()
        path.write_text(text.replace(mutation.before, mutation.after))
        try:
            return mutation._asdict() | run(folder, tests)
        finally:
            path.write_text(text)
    finally:
        copies.put(folder)


def run(folder: Path, tests: str) -> dict[str, Any]:
    """Whether a test fails, and which one does first."""
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = f"{sys.executable} -m pytest -x -q -p no:cacheprovider {tests}"
    try:
        done = subprocess.run(
            command,
            shell=True,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"caught": True, "by": f"no end after {PATIENCE} s"}
    if done.returncode == 0:
        return {"caught": False, "by": ""}
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return {"caught": True, "by": failed[1] if failed else f"exit code {done.returncode}"}


def line_of(result: dict[str, Any]) -> str:
    verdict = result["by"] if result["caught"] else f"SURVIVES {result['because']}"
    return f"{result['file']}: {shown(result['before'])} -> {shown(result['after'])}: {verdict}"


def shown(code: str) -> str:
    """A piece of code on one line."""
    return " ".join(code.split())


def recorded() -> list[dict[str, Any]]:
    return json.loads(RECORD.read_text())["mutations"] if RECORD.exists() else []


def write(results: dict[tuple, dict[str, Any]]) -> None:
    """The record and its table, of the mistakes that are still in the list."""
    known = {(m.file, m.before, m.after): m for m in MUTATIONS}
    rows = [results[key] | {"because": mutation.because} for key, mutation in known.items() if key in results]
    caught = sum(row["caught"] for row in rows)
    facts = {
        "command": "python tools/mutations.py",
        "python": platform.python_version(),
        "caught": caught,
        "of": len(rows),
    }
    RECORD.write_text(json.dumps(facts | {"mutations": rows}, indent=1) + "\n")
    lines = [
        "# One-line mistakes, and the test that catches each",
        "",
        f"Made by `python tools/mutations.py`: {caught} of {len(rows)} are caught.",
        "",
        "| file | code | mistake | caught by |",
        "| --- | --- | --- | --- |",
    ]
    for row in rows:
        code = [
            f"`{shown(row[name])}`".replace("|", "\\|") if row[name] else "(nothing)" for name in ("before", "after")
        ]
        verdict = f"`{row['by']}`" if row["caught"] else f"**survives**: {row['because'] or 'needs a test'}"
        lines.append(f"| {row['file']} | {code[0]} | {code[1]} | {verdict} |")
    TABLE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
