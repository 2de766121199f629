"""One run: `viewproof run config=NAME`, or `python -m attacks.run config=NAME`. Torch is imported inside the run.

Under torchrun every process composes the same configuration; only the first one has a run directory.
"""

import os
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from attacks import __version__
from attacks.runtime.command_line import USER_ERRORS
from attacks.runtime.signals import StopSignal, stoppable
from attacks.schema import launchers, presets
from attacks.schema import validate as schema
from attacks.schema.composition import RULES, message_line, refuse_unchecked, register, stored_preset
from attacks.schema.composition import compose as compose  # for use in Python
from attacks.schema.options import CONFIGS
from attacks.schema.reference import usage
from attacks.schema.secrets import refuse_credentials


@hydra.main(**RULES, config_path=str(CONFIGS), config_name="run")
def main(config: DictConfig) -> float | None:
    """One experiment, as composed by Hydra. Returns its primary measure under attack, for a sweeper that optimises;
    None where another process makes the tables."""
    settings = HydraConfig.get()
    try:
        run = schema.validate(config)
        presets.refuse_unasked(run, presets.typed_words(settings.overrides.task, settings.sweeper.get("params")))
        presets.refuse_unused(run, settings.overrides.task)
        from attacks.experiment.job import job, show_part
        from attacks.report.warnings import refuse_failed

        if run.show is not None:
            show_part(run, settings.runtime.choices["config"], settings.overrides.task)
            return None
        out, overrides = Path(settings.runtime.output_dir), list(settings.overrides.task)
        with stoppable(out):
            content = job(run, out, settings.runtime.choices["config"], overrides)
        refuse_failed(content)
        if settings.mode is RunMode.RUN:
            _end_by_policy(content)
        return content["arms"]["eot"][content["primary"]["measure"]]["mean"] if content else None
    except StopSignal as stop:
        launchers.hand_on(stop.number)
        raise
    except Exception as error:
        mendable = isinstance(error, USER_ERRORS)
        if PROCESSES > 1:
            _end(error)
        if mendable and settings.mode is RunMode.RUN and not _full_errors():
            _fail(error)  # exits: Hydra would add a line of its own
        if mendable and settings.mode is RunMode.MULTIRUN:  # the sweep goes on; Hydra raises this again at its end
            print(f"error: job {settings.job.num}: {message_line(error)}", file=sys.stderr, flush=True)
        raise


def cli() -> None:
    """The entry point of `python -m attacks.run` and of `viewproof run`."""
    if "--version" in sys.argv[1:]:  # Hydra would print its own
        print(f"viewproof {__version__}")
        return
    sys.argv[1:] = ("show=plan" if word == "--dry-run" else presets.config_word(word) for word in sys.argv[1:])
    # Makes Hydra raise exceptions instead of printing them.
    os.environ[USERS_VALUE] = os.environ.get("HYDRA_FULL_ERROR", "0")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        with tempfile.TemporaryDirectory() as scratch:
            is_shown = any(a.startswith("show=") and a != "show=null" for a in sys.argv[1:])
            is_resumed = any(a.startswith("resume=") for a in sys.argv[1:])  # composes nothing: Hydra makes no folder
            if (RANK or is_shown) and not is_resumed:
                sys.argv[1:] = _follower(sys.argv[1:], scratch)
            _run()
    except (CompactHydraException, OmegaConfBaseException, RecursionError, *USER_ERRORS) as error:
        # Hydra has finished composing
        ours = isinstance(error, RecursionError) and "attacks.experiment.job" in sys.modules
        if _full_errors() or ours:
            raise
        _fail(error)
    except StopSignal as stop:
        if not RANK:
            print(stop, file=sys.stderr)
        sys.exit(stop.code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        os.environ["HYDRA_FULL_ERROR"] = os.environ.pop(USERS_VALUE)


def _resume(arguments: Sequence[str]) -> None:
    """`resume=DIRECTORY`, which contains the whole configuration."""
    for argument in arguments:
        refuse_credentials(argument.partition("=")[2], f"`{argument.partition('=')[0]}`")
    (folder,) = (argument.removeprefix("resume=") for argument in arguments if argument.startswith("resume="))
    overrides = [argument for argument in arguments if not argument.startswith("resume=")]
    if not folder:
        raise ValueError("`resume` must be the directory of a run: resume=outputs/...")
    from attacks.experiment.job import resume
    from attacks.report.warnings import refuse_failed

    with stoppable(Path(folder)):
        content = resume(Path(folder), overrides)
    refuse_failed(content)
    _end_by_policy(content)


def _end_by_policy(content: Mapping[str, Any]) -> None:
    """End with the exit code of the run's policy: 3 for FAIL, 4 for UNDECIDED."""
    from attacks.gate.verdict import CODES

    if (gate := content.get("gate")) and (code := CODES[gate["verdict"]]):
        sys.exit(code)


def _run() -> None:
    presets.refuse_repeats(sys.argv[1:])
    if any(argument.startswith("resume=") for argument in sys.argv[1:]):
        _resume(sys.argv[1:])
        return
    register()
    # Hydra takes no value behind a flag
    arguments = sorted(sys.argv[1:], key=lambda word: word not in ("-m", "--multirun"))
    sys.argv[1:] = [stored_preset(argument) for argument in arguments]
    if {"--help", "-h"} & set(sys.argv[1:]):
        print(usage(sys.argv[1:]))
        return
    refuse_unchecked(sys.argv[1:])
    launchers.prepare_launcher(sys.argv[1:])
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
#: Seconds that another process than the first waits before it prints an error, which is mostly that of the first.
PAUSE = 5.0
USERS_VALUE = "VIEWPROOF_FULL_ERROR"


def _full_errors() -> bool:
    return os.environ.get(USERS_VALUE) == "1"


def _end(error: Exception) -> NoReturn:
    """End this one of several processes, and with it the run or sweep. Alone in the next job, it would receive
    messages that belong to this one."""
    if isinstance(error, USER_ERRORS) and not _full_errors():
        _fail(error)
    time.sleep(PAUSE if RANK else 0)
    traceback.print_exception(error)
    sys.exit(1)


def _fail(error: BaseException) -> NoReturn:
    time.sleep(PAUSE if RANK else 0)
    print(f"{f'process {RANK}: ' if RANK else ''}error: {message_line(error, sys.argv[1:])}", file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
    cli()
