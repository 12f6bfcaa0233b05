"""A benchmark from its plan to its page: what it reads, refuses, trains, goes on with after a kill, and survives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from shoal.benchmark.cells import Cell, cells_of, composed
from shoal.benchmark.plan import Planned, duration, plan_cell, plan_table
from shoal.benchmark.settings import SHIPPED, Benchmark, read, save
from shoal.benchmark.train import Outcome, Tick, look, note, status, train_cell
from shoal.errors import Fault, UserError
from shoal.run.signals import PARENT, Stop
from tests.conftest import ROOT

SCRIPT = ROOT / "scripts" / "benchmark.py"
TINY = (
    "seeds=2",
    "total_steps=128",
    "chunks=4",
    "algo.num_envs=4",
    "algo.rollout_length=8",
    "algo.actor.widths=[8]",
    "evaluation.episodes=2",
)
PPO = ("algo.epochs=1", "algo.minibatches=2", "algo.critic.widths=[8]")


def planned(*words: str) -> list[Planned]:
    settings, others = read(words)
    return [plan_cell(cell) for cell in cells_of(settings, others)]


def test_a_command_line_becomes_cells_and_later_settings_win(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "algorithms: [ippo, vdn]\ntasks: [mpe/simple_spread, matrix/climbing]\nseeds: 3\n"
        "settings: {hypers: {lr: 1e-3, gamma: 0.8}}\n"
        "by_algorithm: {ippo: {hypers: {gamma: 0.7}, algo: {actor: {widths: [8, 8]}}}}\n"
        "by_task: {matrix/climbing: {hypers: {gamma: 0.6}, env: {kwargs: {horizon: 5}}}}\n"
    )
    settings, others = read([f"benchmark={path}", "seeds=4", "hypers.lr_end=1"])
    assert (settings.name, settings.dir, settings.seeds, others) == (
        "mine",
        "runs/benchmark/mine",
        4,
        ["hypers.lr_end=1"],
    )
    cells = cells_of(settings, others)
    assert [cell.label for cell in cells[:2]] == ["ippo on mpe/simple_spread", "ippo on matrix/climbing"]
    assert str(cells[3].folder) == "runs/benchmark/mine/vdn/matrix.climbing"
    values = []
    for cell in cells:
        _, cfg = composed(cell)
        values.append((cfg.env.name, cfg.hypers.gamma, cfg.hypers.lr, cfg.hypers.lr_end, cfg.seeds))
    assert values == [
        ("mpe/simple_spread", 0.7, 1e-3, 1, 4),
        ("matrix/climbing", 0.6, 1e-3, 1, 4),
        ("mpe/simple_spread", 0.8, 1e-3, 1, 4),
        ("matrix/climbing", 0.6, 1e-3, 1, 4),
    ]
    assert composed(cells[1])[1].env.kwargs.horizon == 5
    assert list(composed(cells[0])[1].algo.actor.widths) == [8, 8]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["algorithms=[ippo]"], "tasks=[]"),
        (["algorithms=[ipo]", "tasks=[mpe/simple_spread]"], "did you mean ippo?"),
        (["algorithms=[ippo,ippo]", "tasks=[mpe/simple_spread]"], "only once"),
        (["algorithms=[ippo]", "tasks=[mpe/simple_sprad]"], "simple_spread"),
        (["algorithms=[nowhere.py]", "tasks=[mpe/simple_spread]"], "nowhere.py: no such file"),
        (["benchmark=quik"], "one of mpe, quick, smax, vmas_fine_tuned"),
        (["benchmark=quick", "seeds=0"], "seeds=0: must be at least 1"),
        (["benchmark=quick", "seeds=many"], "many"),
        (["benchmark=quick", "seeds=1,2"], "seeds=[a,b]"),
        (["benchmark=quick", "seeds=[1"], "cannot be read"),
    ],
)
def test_mistakes_get_one_line(words, message):
    with pytest.raises(UserError) as error:
        read(words)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_wrong_setting_is_a_mistake_and_an_impossible_pair_is_not():
    words = ["algorithms=[vdn]", "tasks=[mabrax/hopper_3x1]"]
    with pytest.raises(UserError, match=r"did you mean hypers\.lr"):
        planned(*words, "hypers.lrr=1")
    (one,) = planned(*words)
    assert one.state == "impossible"
    assert "continuous actions only" in one.reason


def test_a_file_that_is_no_benchmark_is_said_so(tmp_path):
    path = tmp_path / "bad.yaml"
    for text in ("- a list", "algorithms: {a: 1}", "colour: red", "algorithms: [ippo"):
        path.write_text(text)
        with pytest.raises(UserError, match=r"bad\.yaml"):
            read([f"benchmark={path}"])


@pytest.mark.parametrize("name", [path.stem for path in sorted(SHIPPED.glob("*.yaml"))])
def test_what_is_shipped_composes(name):
    settings, others = read([f"benchmark={name}"])
    for cell in cells_of(settings, others)[:: len(settings.tasks)]:
        _, cfg = composed(cell)
        assert cfg.algorithm == cell.algorithm


def test_benchmarls_settings_arrive():
    settings, others = read(["benchmark=vmas_fine_tuned"])
    cells = {cell.algorithm: composed(cell)[1] for cell in cells_of(settings, others)[::3]}
    mappo, isac, iql = cells["mappo"], cells["isac"], cells["iql"]
    assert mappo.algo.num_envs * mappo.algo.rollout_length == 60_000
    assert (mappo.algo.epochs, list(mappo.algo.critic.widths), mappo.hypers.gamma) == (45, [256, 256], 0.9)
    assert (isac.algo.critic, isac.algo.gradient_steps, isac.algo.batch_size) == ("local", 1000, 128)
    assert (iql.algo.mixer, iql.algo.q.network, iql.hypers.eps_start) == ("none", "mlp", 0.8)
    assert {cfg.hypers.lr for cfg in cells.values()} == {5e-5}


def test_more_runs_than_fit_are_trained_in_batches(monkeypatch, tmp_path):
    words = ["algorithms=[ippo]", "tasks=[matrix/climbing]", "seeds=8", *TINY[1:], *PPO, f"dir={tmp_path}"]
    (plenty,) = planned(*words)
    monkeypatch.setattr("shoal.benchmark.plan.available_memory", lambda _: int(0.5 * plenty.memory))
    (scarce,) = planned(*words)
    assert plenty.batches == 1 < scarce.batches
    assert scarce.memory < plenty.memory
    assert scarce.cell.words[-1].startswith("runs_per_batch=")
    assert plenty.seconds > 0
    assert "8 in" in plan_table([scarce])[1][2]


def run(*words: str) -> subprocess.Popen:
    # One device: two trainings under test are as many processes as there are cores.
    environment = os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0"}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=ROOT,
    )


@pytest.fixture(scope="module")
def broken(tmp_path_factory) -> Path:
    """An algorithm file of a user's, with a mistake in it."""
    path = tmp_path_factory.mktemp("user") / "broken.py"
    source = (ROOT / "baselines" / "ippo" / "ippo_ff_mpe.py").read_text()
    path.write_text(source.replace("    check(config, env)\n", '    raise RuntimeError("a mistake of mine")\n', 1))
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory, broken) -> tuple[Path, str, str, int]:
    """An uninterrupted benchmark: two algorithms that work, one that fails, and a pair that cannot be."""
    folder = tmp_path_factory.mktemp("whole") / "b"
    process = run(*words_of(folder, broken))
    out, err = process.communicate(timeout=400)
    return folder, out, err, process.returncode


def words_of(folder: Path, broken: Path | None) -> list[str]:
    algorithms = f"[ippo,{broken}]" if broken else "[ippo]"
    return [f"algorithms={algorithms}", "tasks=[matrix/climbing,matrix/penalty]", *TINY, *PPO, f"dir={folder}"]


def test_from_plan_to_page(whole):
    folder, out, err, code = whole
    assert code == 1, err  # a cell failed
    assert "time, about" in out
    assert "a mistake of mine" in out
    assert "ippo on matrix/penalty: finished, return" in out
    assert "2 failed: broken on matrix/climbing" in err
    for task in ("climbing", "penalty"):
        assert (folder / "ippo" / f"matrix.{task}" / "evaluations.json").exists()
    status = json.loads((folder / "status.json").read_text())
    assert {label: fields["state"] for label, fields in status.items()} == {
        "ippo on matrix/climbing": "finished",
        "ippo on matrix/penalty": "finished",
        "broken on matrix/climbing": "failed",
        "broken on matrix/penalty": "failed",
    }
    page = (folder / "report.html").read_text()
    assert "ippo" in page
    assert "matrix/penalty" in page
    merged = json.loads((folder / "evaluations.json").read_text())
    assert set(merged["matrix"]) == {"climbing", "penalty"}
    again = OmegaConf.load(folder / "benchmark.yaml")
    assert list(again.tasks) == ["matrix/climbing", "matrix/penalty"]


def test_finished_cells_are_not_trained_again_and_other_settings_are_refused(whole, broken):
    folder = whole[0]
    words = words_of(folder, None)
    assert [one.state for one in planned(*words)] == ["finished", "finished"]
    (longer, _) = planned(*[w.replace("total_steps=128", "total_steps=256") for w in words])
    assert (longer.state, longer.done) == ("begun", 0.5)
    with pytest.raises(UserError, match=r"was begun with hypers.gamma=0.0, not 0.5"):
        planned(*words, "hypers.gamma=0.5")


def test_killed_in_the_middle_it_goes_on_to_the_same_result(whole, tmp_path):
    folder = tmp_path / "b"
    # Many chunks would take long to compare; the first cell is killed as soon as it has begun to record.
    words = [*words_of(folder, None), "report=false"]
    process = run(*words)
    metrics = folder / "ippo" / "matrix.climbing" / "metrics.csv"
    deadline = time.monotonic() + 200
    while not metrics.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert not (folder / "ippo" / "matrix.penalty").exists()
    process = run(*words)
    _out, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    for task in ("climbing", "penalty"):
        for name in ("metrics.csv", "evaluations.json"):
            one, other = (place / "ippo" / f"matrix.{task}" / name for place in (whole[0], folder))
            assert one.read_bytes() == other.read_bytes(), name


def test_a_stop_is_passed_on_and_told(tmp_path):
    cell = Cell("ippo", "matrix/climbing", (), tmp_path / "cell")
    (tmp_path / "cell").mkdir()
    # A training that ends with a checkpoint when told to is a process that exits with 0 on SIGTERM.
    script = tmp_path / "patient.py"
    script.write_text(
        "import signal, sys, time, pathlib\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "pathlib.Path(__file__).with_name('ready').touch()\n"
        "time.sleep(60)\n"
    )

    class Asked:
        @property
        def asked(self):
            return (tmp_path / "ready").exists()

    one = Planned(cell._replace(algorithm=str(script)), "new", steps=1, batches=1)
    outcome = train_cell(one, stop=Asked())
    assert outcome.state == "stopped"
    assert outcome.seconds < 30


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL; out of memory?"),
        ("import sys; sys.exit('error: no such thing')", "no such thing (all of it in"),
    ],
)
def test_why_a_cell_failed(tmp_path, body, message):
    script = tmp_path / "fails.py"
    script.write_text(body)
    one = Planned(Cell(str(script), "matrix/climbing", (), tmp_path / "cell"), "new")
    outcome = train_cell(one)
    assert outcome.state == "failed"
    assert message in outcome.error


def test_a_training_ends_when_the_benchmark_that_began_it_is_gone(monkeypatch):
    monkeypatch.setenv(PARENT, str(os.getppid()))
    assert not Stop().asked
    monkeypatch.setenv(PARENT, "1" if os.getppid() != 1 else "2")
    assert Stop().asked


def test_how_far_a_training_is_comes_from_whole_rows_only(tmp_path):
    assert look(tmp_path, "win_rate") is None
    path = tmp_path / "metrics.csv"
    header = "run,seed,env_steps,evaluation/episode_return,diverged\n"
    path.write_text(f"{header}0,0,64,1.5,0\n1,1,64,2.5,0\n0,0,12")
    tick = look(tmp_path, "win_rate")  # which nothing recorded
    assert (tick, tick.text) == (Tick(64, "episode_return", 2.0, 0, 0), "64 steps, return 2.00")
    path.write_text(header)
    assert look(tmp_path, "win_rate") is None


def test_the_bar_shows_the_objective_of_the_runs_that_live(tmp_path):
    """Of the newest rows; the last one is of a run that has diverged."""
    names = "run,seed,env_steps,evaluation/episode_return,evaluation/episode_return/adversary,diverged"
    rows = ["0,0,64,7,9,0", "0,0,128,7,1,0", "1,1,128,7,3,0", "2,2,128,7,,0", "3,3,128,7,80,1"]
    path, objective = tmp_path / "metrics.csv", "episode_return/adversary"
    path.write_text("\n".join([names, *rows, ""]))
    assert look(tmp_path, objective).text == "128 steps, episode_return/adversary 2.00, 1 diverged, 1 NaN"
    path.write_text("\n".join([names, rows[-1], ""]))
    assert look(tmp_path, objective).text == "128 steps, no score, 1 diverged"


@pytest.mark.parametrize("name", ["log.txt", ".lock"])
def test_nothing_is_written_through_a_link_in_a_cells_folder(tmp_path, name):
    mine, script = tmp_path / "mine.txt", tmp_path / "script.py"
    mine.write_text("precious")
    script.write_text("print('x')")
    (tmp_path / "cell").mkdir()
    (tmp_path / "cell" / name).symlink_to(mine)
    one = Planned(Cell(str(script), "matrix/climbing", (), tmp_path / "cell"), "new")
    with pytest.raises(Fault, match=f"{name}: cannot be written .is a symbolic link") as error:
        train_cell(one)
    assert "\n" not in str(error.value) and mine.read_text() == "precious"
    (tmp_path / "status.json.lock").symlink_to(mine)
    with pytest.raises(Fault, match=r"status\.json\.lock: cannot be written"):
        note(tmp_path, one.cell, Outcome("finished", 1.0))
    assert mine.read_text() == "precious"
    (tmp_path / "link").symlink_to(tmp_path / "cell")
    with pytest.raises(Fault, match="link: cannot be written"):
        train_cell(one._replace(cell=one.cell._replace(folder=tmp_path / "link")))


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    """A file stands where the folder should be: as on a full or read-only disk, that is an OSError."""
    (tmp_path / "file").write_text("")
    one = Planned(Cell("ippo", "matrix/climbing", (), tmp_path / "file" / "cell"), "new")
    for act in (
        lambda: train_cell(one),
        lambda: note(tmp_path / "file", one.cell, Outcome("finished", 1.0)),
        lambda: save(Benchmark(dir=str(tmp_path / "file" / "b")), []),
    ):
        with pytest.raises(Fault, match=r"cannot be written \(Not a directory") as error:
            act()
        assert "\n" not in str(error.value)
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")  # the benchmark's folder itself may be one
    save(Benchmark(dir=str(tmp_path / "link")), [])
    assert (tmp_path / "disk" / "benchmark.yaml").exists()


@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_hydras_launchers_train_the_cells(launcher, whole, tmp_path):
    pytest.importorskip(f"hydra_plugins.hydra_{launcher.split('_')[0]}_launcher")
    # Finished cells make a launcher's job cheap: only one of the two is to be trained.
    folder = tmp_path / "b"
    extra = ["hydra.launcher.n_jobs=1"] if launcher == "joblib" else ["hydra.launcher.timeout_min=10"]
    words = [*words_of(folder, None), "tasks=[matrix/climbing]", "report=false", f"hydra/launcher={launcher}", *extra]
    process = run(*words)
    _out, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    assert status(folder)["ippo on matrix/climbing"].state == "finished"
    for name in ("metrics.csv", "evaluations.json"):
        one, other = (place / "ippo" / "matrix.climbing" / name for place in (whole[0], folder))
        assert one.read_bytes() == other.read_bytes(), name


def test_durations_read_well():
    assert [duration(s) for s in (4.2, 80, 100, 4000, 9000, 2e5)] == [
        "4 s",
        "80 s",
        "2 min",
        "67 min",
        "2.5 h",
        "2.3 d",
    ]
