"""One run: `viewproof run config=NAME`, or `python -m attacks.run config=NAME`. The only file that knows Hydra.

Torch is imported inside the run, so that `--help`, a typo and a refused file respond at once.

Under torchrun every process composes the same configuration. Only the first one has a run directory; the others get a
temporary folder, so that no two processes write to the same one.
"""

import os
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attacks import __version__
from attacks.report.warnings import refuse_failed
from attacks.runtime.command_line import USER_ERRORS
from attacks.runtime.signals import Stopped, stoppable
from attacks.schema import launchers, presets
from attacks.schema import validate as schema
from attacks.schema.declared import CONFIGS
from attacks.schema.groups import CHOICES, FILES, ViewsConfig
from attacks.schema.messages import one_line
from attacks.schema.reference import usage
from attacks.schema.run import Run
from attacks.schema.secrets import refuse_credentials
from attacks.schema.suggestions import closest, did_you_mean

#: Hydra 1.3 wants `version_base`; 1.4 has the same rules by default and warns about the argument.
RULES = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}


@cache
def register() -> None:
    """Register the schemas with Hydra: each is a choice of its group. Those of `FILES`, whose values come from YAML
    files, have a group of their own. Cached, because it takes a quarter of the time of composing a configuration."""
    store = ConfigStore.instance()
    store.store(group="schema", name="run", node=Run)
    for group, choices in CHOICES.items():
        for name, node in choices.items():
            store.store(group=f"schema/{group}" if group in FILES else group, name=name, node=_open(node))
    store.store(group="schema/transforms", name="views", node=ViewsConfig)
    launchers.register()


def _open(node: type) -> DictConfig:
    """A schema. Below some keys any key is allowed without a `+`; the part that takes them checks them."""
    made: DictConfig = OmegaConf.structured(node)
    for key in ("preprocess", "place"):
        if key in made:
            OmegaConf.set_struct(made[key], False)
    return made


@hydra.main(**RULES, config_path=str(CONFIGS), config_name="run")
def main(config: DictConfig) -> None:
    """One experiment, as composed by Hydra."""
    settings = HydraConfig.get()
    try:
        run = schema.validate(config)
        presets.refuse_unasked(run, settings.overrides.task)
        presets.refuse_unused(run, settings.overrides.task)
        from attacks.experiment.job import job, show

        if run.show is not None:
            show(run)
            return
        out, overrides = Path(settings.runtime.output_dir), list(settings.overrides.task)
        with stoppable(out):
            content = job(run, out, settings.runtime.choices["config"], overrides)
        refuse_failed(content)
        if settings.mode is RunMode.RUN:
            _decided(content)
    except Stopped as stop:
        launchers.hand_on(stop.number)
        raise
    except Exception as error:
        mendable = isinstance(error, USER_ERRORS)
        if PROCESSES > 1:
            _end(error)
        if mendable and settings.mode is RunMode.RUN and not _full_errors():
            _fail(error)  # exits: Hydra would add a line of its own
        if mendable and settings.mode is RunMode.MULTIRUN:  # the sweep goes on; Hydra raises this again at its end
            print(f"error: job {settings.job.num}: {one_line(error)}", file=sys.stderr, flush=True)
        raise


def cli() -> None:
    """The entry point of `python -m attacks.run` and of `viewproof run`."""
    if "--version" in sys.argv[1:]:  # Hydra would print its own
        print(f"viewproof {__version__}")
        return
    # Makes Hydra raise exceptions instead of printing them; the user's value is stored under ALL.
    os.environ[ALL] = os.environ.get("HYDRA_FULL_ERROR", "0")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        with tempfile.TemporaryDirectory() as scratch:
            shown = any(a.startswith("show=") and a != "show=null" for a in sys.argv[1:])
            resumed = any(a.startswith("resume=") for a in sys.argv[1:])  # composes nothing: Hydra makes no folder
            if (RANK or shown) and not resumed:
                sys.argv[1:] = _follower(sys.argv[1:], scratch)
            _run()
    except (CompactHydraException, OmegaConfBaseException, RecursionError, *USER_ERRORS) as error:
        # Hydra has finished composing
        ours = isinstance(error, RecursionError) and "attacks.experiment.job" in sys.modules
        if _full_errors() or ours:
            raise
        _fail(error)
    except Stopped as stop:
        if not RANK:
            print(stop, file=sys.stderr)
        sys.exit(stop.code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        os.environ["HYDRA_FULL_ERROR"] = os.environ.pop(ALL)


def compose(preset: str = "quickstart", overrides: Sequence[str] = ()) -> Run:
    """The checked configuration that the command line `config=PRESET OVERRIDES...` gives, for use in Python.

    Raises ValueError in one line."""
    register()
    try:
        overrides = [_stored(f"config={preset}"), *overrides]
        _refuse_unchecked([presets.plain_word(word) for word in overrides])
        with hydra.initialize_config_dir(str(CONFIGS), **RULES):
            run = schema.validate(hydra.compose("run", overrides=overrides))
    except (CompactHydraException, OmegaConfBaseException, RecursionError) as error:
        raise ValueError(one_line(error, overrides)) from None
    presets.refuse_unasked(run, overrides)
    presets.refuse_unused(run, overrides)
    return run


def _resume(arguments: Sequence[str]) -> None:
    """`resume=DIRECTORY`, which contains the whole configuration."""
    folder, overrides = "", []
    for argument in arguments:
        key, _, value = argument.partition("=")
        refuse_credentials(value, f"`{key}`")
        if key == "resume":
            folder = value
        else:
            overrides.append(argument)
    if not folder:
        raise ValueError("`resume` must be the directory of a run: resume=outputs/...")
    from attacks.experiment.job import resume

    with stoppable(Path(folder)):
        content = resume(Path(folder), overrides)
    refuse_failed(content)
    _decided(content)


def _decided(content: Mapping[str, Any]) -> None:
    """End with the exit code of the run's policy: 3 for FAIL, 4 for UNDECIDED."""
    from attacks.gate.verdict import exit_code

    if code := exit_code(content.get("gate")):
        sys.exit(code)


def _run() -> None:
    presets.refuse_twice(sys.argv[1:])
    if any(argument.startswith("resume=") for argument in sys.argv[1:]):
        _resume(sys.argv[1:])
        return
    register()
    # Hydra takes no value behind a flag
    arguments = sorted(sys.argv[1:], key=lambda word: word not in ("-m", "--multirun"))
    sys.argv[1:] = [_stored(argument) for argument in arguments]
    if {"--help", "-h"} & set(sys.argv[1:]):
        print(usage(sys.argv[1:]))
        return
    _refuse_unchecked(sys.argv[1:])
    launchers.prepare(sys.argv[1:])
    with launchers.sweeping(_index):
        main()


def _index(sweep: Path) -> None:
    if not RANK:
        from attacks.experiment.job import index

        index(sweep)


def _follower(arguments: list[str], scratch: str) -> list[str]:
    """The command line of a process other than the first, or of one that only shows something: it writes into the
    folder `scratch` only."""
    ours = {f"hydra.{mode}.dir": scratch for mode in ("run", "sweep")}
    ours |= {"hydra.sweep.subdir": ".", "hydra/hydra_logging": "disabled"}
    rest = [argument for argument in arguments if argument.partition("=")[0] not in ours]
    # Next to the other overrides: Hydra accepts none after a flag such as -m.
    last = [i for i, argument in enumerate(rest, 1) if "=" in argument and argument[0] != "-"]
    at = max(last, default=len(rest))
    return [*rest[:at], *(f"{key}={value}" for key, value in ours.items()), *rest[at:]]


#: The number of processes of torchrun, and the rank of this one.
PROCESSES = int(os.environ.get("WORLD_SIZE", "1"))
RANK = int(os.environ.get("RANK", "0")) if PROCESSES > 1 else 0
#: Seconds that a process other than the first waits before it prints an error. Mostly the first process has the same
#: error, and torchrun then ends the others before they repeat it.
PAUSE = 5.0
ALL = "VIEWPROOF_FULL_ERROR"


def _full_errors() -> bool:
    """Whether the user set HYDRA_FULL_ERROR=1 to see tracebacks."""
    return os.environ.get(ALL) == "1"


def _end(error: Exception) -> NoReturn:
    """End this one of several processes, and with it the run or sweep: alone in the next job, it would receive
    messages of this one."""
    if isinstance(error, USER_ERRORS) and not _full_errors():
        _fail(error)
    _give_way()
    traceback.print_exception(error)
    sys.exit(1)


def _give_way() -> None:
    if RANK:
        time.sleep(PAUSE)


def _fail(error: BaseException) -> NoReturn:
    _give_way()
    print(f"{f'process {RANK}: ' if RANK else ''}error: {one_line(error, sys.argv[1:])}", file=sys.stderr)
    sys.exit(1)


def _stored(argument: str) -> str:
    """Store the preset file of `config=./mine.yaml` under its stem, so that Hydra can choose it."""
    if not argument.startswith("config="):
        return argument
    names = []
    for given in argument.removeprefix("config=").split(","):
        choice = given.strip("'\"")
        if presets.is_path(choice):
            preset, name = presets.read(choice), Path(choice).stem
            if not presets.is_word(name):
                raise ValueError(
                    f"preset `{choice}` has a sign in its name that Hydra does not read; rename the file"
                )
            if (CONFIGS / "config" / f"{name}.yaml").exists():
                raise ValueError(f"preset `{choice}` has the name of a bundled preset; rename the file")
            if name in names:
                raise ValueError(f"preset `{choice}` has the name of another one in this sweep; rename the file")
            ConfigStore.instance().store(group="config", name=name, node=preset, package="_global_")
            choice = name
        names.append(choice)
    return f"config={','.join(names)}"


def _refuse_unchecked(arguments: list[str]) -> None:
    """Check the files of a `--config-dir` before Hydra reads them, and refuse all other ways to name files: the key
    `hydra` of a file could open files or run code, and a pickle is code."""
    parser = get_args_parser()
    given, rest = parser.parse_known_args(arguments)
    for flag in rest:
        near = did_you_mean(flag.lstrip("-")) or closest(flag, parser._option_string_actions)
        raise ValueError(f"unknown option `{flag}`: values are given as KEY=VALUE{near}")
    for flag in ("config_path", "config_name", "experimental_rerun"):
        if getattr(given, flag) is not None:
            raise ValueError(f"`--{flag.replace('_', '-')}` is refused: name a preset file, config=./mine.yaml")
    for argument in map(presets.plain_word, given.overrides):
        key, _, value = argument.lstrip("+~").partition("=")
        refuse_credentials(value, f"`{key}`")  # Hydra keeps the whole command line
        group = key.partition("@")[0]
        if any(step in group or ("." not in group and step in value) for step in ("..", "//")):
            raise ValueError(f"`{argument}` must name a choice, not a path; a preset file ends in .yaml")
    folder = Path(given.config_dir or os.devnull)
    for file in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if "hydra" in str(file.relative_to(folder)) or (file.is_symlink() and file.is_dir()):
            raise ValueError(f"`{file}` is refused: a folder of configurations has no links to folders, and no hydra")
        if file.suffix in (".yaml", ".yml"):
            presets.read(file)


if __name__ == "__main__":
    cli()
