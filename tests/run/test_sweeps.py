"""What Hydra's users write: values of a sweep in a preset, sweepers of plugins, `experiment=`, `hydra.verbose`."""

import itertools
import json
import logging
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from omegaconf import OmegaConf

from attacks.schema import presets
from attacks.schema.encoder import PROGRAMS
from attacks.schema.suggestions import keys
from attacks.schema.validate import fraction
from tests.helpers.runs import call
from tests.helpers.sampling import mostly_slow

LEAN = {"data": {"count": 1, "size": 64}, "evaluate": {"views": 2, "refine": 0, "one_view": False}}


def measure(run):
    """A stand-in for the primary measure of a run: the best of all eps in levels of 255 is 5, and of all seeds 2."""
    return -((255 * fraction(run.perturbation.eps, "eps") - 5) ** 2) - (run.seed - 2) ** 2


@pytest.fixture
def jobs(monkeypatch, tmp_path):
    """The jobs of a sweep, of which none attacks: their configuration and their words."""
    jobs = []

    def job(run, out, preset, overrides):
        jobs.append(SimpleNamespace(run=asdict(run), preset=preset, words=overrides, measure=measure(run)))
        return {"primary": {"measure": "cosine"}, "arms": {"eot": {"cosine": {"mean": measure(run)}}}}

    monkeypatch.setattr("attacks.experiment.job.job", job)
    monkeypatch.chdir(tmp_path)
    return jobs


class Climb(Sweeper):
    """A sweeper that takes a value of each key in turn, and keeps what the jobs return."""

    returns: ClassVar[list[float]] = []

    def __init__(self, params):
        self.params = params

    def setup(self, **parts):
        self.launcher = Plugins.instance().instantiate_launcher(**parts)

    def sweep(self, arguments):
        options = [[f"{key}={value}" for value in values.split(",")] for key, values in self.params.items()]
        words = [[*arguments, *row] for row in itertools.product(*options)]
        self.returns.extend(job.return_value for job in self.launcher.launch(words, initial_job_idx=0))


@dataclass
class ClimbConfig:
    _target_: str = "hydra_plugins.climb.Climb"
    params: dict[str, str] | None = None


@pytest.fixture
def climb(monkeypatch):
    """The sweeper `climb`, as an installed plugin brings it; what its jobs return."""
    package, module = ModuleType("hydra_plugins"), SimpleNamespace(Climb=Climb)
    package.__path__, package.climb = [], module
    for name, value in (("hydra_plugins", package), ("hydra_plugins.climb", module)):
        monkeypatch.setitem(sys.modules, name, value)
    monkeypatch.setattr(Climb, "__module__", "hydra_plugins.climb")
    monkeypatch.setattr(Climb, "returns", [])
    Plugins.instance().register(Climb)
    ConfigStore.instance().store(group="hydra/sweeper", name="climb", node=ClimbConfig, provider="climb")
    return Climb.returns


def preset(parameters, base="smoke", **values):
    """The path of a preset with these values of a sweep, in the working directory."""
    content = {"defaults": [f"/config/{base}", "_self_"], "hydra": {"sweeper": {"params": parameters}}, **values}
    Path("mine.yaml").write_text(yaml.safe_dump(content))
    return "./mine.yaml"


@pytest.mark.parametrize(
    "parameters",
    [
        {"optimiser": "pgd,apgd", "perturbation.shared": True},
        pytest.param({"perturbation.eps": "4/255,8/255", "seed": "range(0,3)"}, marks=pytest.mark.slow),
        pytest.param({"attack.steps": "choice(1,2)", "data.photos": "[clock],[a,b]"}, marks=pytest.mark.slow),
    ],
)
def test_values_in_a_preset_make_the_jobs_of_the_same_command_line(jobs, monkeypatch, parameters):
    assert call(monkeypatch, "-m", f"config={preset(parameters)}", "data.count=1", "hydra.sweep.dir=a") == 0
    jobs_of_preset, jobs[:] = [*jobs], []
    words = [f"{key}={value}" for key, value in parameters.items()]
    assert call(monkeypatch, "-m", "config=smoke", "data.count=1", *words, "hydra.sweep.dir=b") == 0
    assert [job.run for job in jobs_of_preset] == [job.run for job in jobs] and len(jobs) > 1
    words_of_jobs = [{word for word in job.words if not word.startswith("config=")} for job in jobs_of_preset]
    assert words_of_jobs == [set(job.words) - {"config=smoke"} for job in jobs]  # what manifest.json keeps


def test_the_command_line_wins_over_the_values_in_a_preset(jobs, monkeypatch):
    assert call(monkeypatch, "-m", f"config={preset({'seed': '0,1,2', 'attack.steps': '1,2'})}", "seed=7") == 0
    assert [(job.run["seed"], job.run["attack"]["steps"]) for job in jobs] == [(7, 1), (7, 2)]
    jobs.clear()
    assert call(monkeypatch, "config=./mine.yaml") == 0  # without -m nothing is swept
    assert [job.run["seed"] for job in jobs] == [0]


PARAMETERS = {
    "overwrite": "true,false",
    "workers": 2,
    "shard": "0/2",
    "encoder.key": "VIEWPROOF_KEY",
    "data.cache": "cache",
    "tracker.mode": "online",
    "tracker.uri": "sqlite:///x.db",
    "config": "smoke,quickstart",
    "experiment": "smoke",
    "resume=x,seed": "1",
    "hydra.run.dir": "elsewhere",
    "hydra/launcher": "joblib",
    "hydra.sweeper.params.seed": "1",
    "+seed": "1",
    "~seed": "1",
    "seed@hydra.job": "1",
    "_target_": "os.system",
    "encoder._target_": "os.system",
    "encoder": "../../x,pocket",
    "attack": "[single]",
    "seed": "${evaluate.views}",
    "evaluate.views": "${oc.env:HOME}",
    "data.path": "https://me:canary@host/x",
    "evaluate.refine": ["1", "2"],
    "evaluate.maps": {"_target_": "os.system"},
    "evaluate.batch": None,
    "evaluate.wide": "1\nseed=2",
    "evaluate.left_out": "9" * 5000,
    "evaluate.deploy": "[",
    "": "1",
    "1": "1",
}


@pytest.mark.parametrize("key", PARAMETERS)
def test_a_preset_sweeps_over_values_only_of_keys(tmp_path, monkeypatch, key):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"hydra\.sweeper\.params|may not choose it|password") as error:
        presets.read_preset(preset({key: PARAMETERS[key]}))
    assert str(error.value).isprintable() and "canary" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]


def test_every_key_that_only_the_command_line_may_set_is_refused_in_a_sweep():
    assert {*presets.TYPED} <= {*PARAMETERS} and {*presets.TYPED} <= {*keys()}


SETTINGS = """null
[]
x
{run: {dir: x}}
{sweeper: null}
{sweeper: {_target_: os.system}}
{sweeper: {params: seed}}
{sweeper: {params: {seed: "1,2"}, n_trials: 3}}
{sweeper: {params: {seed: "1,2"}}, launcher: {n_jobs: 2}}
{sweeper: {params: {seed: "1,2"}}, searchpath: [/etc]}"""


def test_a_preset_sets_nothing_else_of_hydra(tmp_path):
    for settings in SETTINGS.splitlines():
        (tmp_path / "mine.yaml").write_text(f"seed: 1\nhydra: {settings}\n")
        with pytest.raises(ValueError, match=r"key `hydra` is refused, but for sweeper\.params"):
            presets.read_preset(tmp_path / "mine.yaml")


@pytest.mark.parametrize("name", mostly_slow(PROGRAMS, 4))
def test_a_program_in_the_values_of_a_preset_is_not_taken_for_one_that_was_typed(jobs, monkeypatch, capsys, name):
    path = preset({"encoder": name, "encoder.model": "os:system,os:remove"})
    assert call(monkeypatch, "-m", f"config={path}") == 1 and jobs == []
    assert f"`encoder={name}` {PROGRAMS[name]}, so a preset may not choose it" in capsys.readouterr().err


def test_a_sweeper_gets_the_measure_of_each_run(jobs, climb, monkeypatch):
    path = preset({"perturbation.eps": "2/255,5/255", "seed": "0,2"})
    assert call(monkeypatch, "-m", f"config={path}", "hydra/sweeper=climb") == 0
    assert climb == [job.measure for job in jobs] and len(climb) == 4 and max(climb) == pytest.approx(0, abs=1e-9)


@pytest.mark.slow
def test_the_returned_measure_is_the_primary_one_in_the_files(climb, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for primary in ("success", "cosine"):
        path = preset({"attack.steps": "1,2"}, **LEAN)
        words = [f"config={path}", f"evaluate.primary={primary}", f"hydra.sweep.dir={primary}", "hydra/sweeper=climb"]
        assert call(monkeypatch, "-m", *words) == 0
        contents = [json.loads((tmp_path / primary / name / "metrics.json").read_text()) for name in "01"]
        assert climb == [content["arms"]["eot"][primary]["mean"] for content in contents]
        climb.clear()


@pytest.mark.launchers
@pytest.mark.filterwarnings("ignore")  # of optuna, and of what it imports
def test_optuna_finds_the_best_value(jobs, monkeypatch, tmp_path):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    path = preset({"perturbation.eps": "choice(2/255,5/255,9/255)", "seed": "range(0,4)"})
    of_optuna = ["n_trials=40", "n_jobs=1", "direction=maximize", "sampler.seed=0"]
    words = [*(f"hydra.sweeper.{word}" for word in of_optuna), "hydra/sweeper/sampler=tpe", "hydra.sweep.dir=out"]
    assert call(monkeypatch, "-m", f"+experiment={path}", "hydra/sweeper=optuna", *words) == 0
    result = OmegaConf.load(tmp_path / "out" / "optimization_results.yaml")
    assert len(jobs) == 40 and result.best_value == max(job.measure for job in jobs)
    assert result.best_params == {"perturbation.eps": "5/255", "seed": 2}


@pytest.mark.parametrize("word", ["hydra/sweeper=nobody", "hydra/sweeper=nobody,basic"])
def test_a_sweeper_that_is_not_installed_gives_the_list_of_sweepers(jobs, monkeypatch, capsys, word):
    assert call(monkeypatch, "-m", "config=smoke", "seed=1,2", word) == 1 and jobs == []
    output = capsys.readouterr().err
    assert "nobody" in output and "basic" in output and output.count("\n") == 1


@pytest.mark.parametrize("form", ["experiment", pytest.param("+experiment", marks=pytest.mark.slow)])
def test_an_experiment_is_a_preset(jobs, monkeypatch, capsys, form):
    names = f"smoke,{preset({}, seed=4)}"
    for key in (form, "config"):
        assert call(monkeypatch, "-m", f"{key}={names}", "data.count=1") == 0
    first, second = map(vars, jobs[:2]), map(vars, jobs[2:])
    assert list(first) == list(second) and [job.preset for job in jobs[2:]] == ["smoke", "mine"]
    assert call(monkeypatch, f"{form}=smoke", "config=quickstart") == 1
    assert "`config` is given twice: config=smoke and config=quickstart" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "names"), [("true", [""]), ("false", []), ("a.b", ["a.b"]), ("[a.b,__main__]", ["a.b", "__main__"])]
)
def test_hydra_verbose_sets_the_levels_of_the_loggers_that_it_names(jobs, monkeypatch, value, names):
    levels = {name: logging.getLogger(name).level for name in ("", "a.b", "__main__")}
    try:
        assert call(monkeypatch, "config=smoke", f"hydra.verbose={value}") == 0 and len(jobs) == 1
        assert [name for name in levels if logging.getLogger(name).level == logging.DEBUG] == names
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


WRONG_LEVELS = ["3", "null", "NaN", "a,b", "[1]", "[a,null]", "[a,true]", "{a:1}", "[]", "'a b'", ""]


@pytest.mark.parametrize("value", WRONG_LEVELS)
def test_hydra_verbose_takes_nothing_that_ends_hydra_in_a_traceback(value):
    with pytest.raises(ValueError, match=r"must be true, false, or names of loggers|is refused"):
        presets.plain_word(f"hydra.verbose={value}")
