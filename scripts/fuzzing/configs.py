"""The laws of a configuration: it is checked and complete, or refused in one line; and nothing else happens."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from attacks.experiment.build import pipeline as pipelines
from attacks.run import compose
from attacks.schema import presets
from attacks.schema import validate as schema
from attacks.schema.run import Run
from fuzzing.config_cases import CASES, composed
from fuzzing.guard import watched
from fuzzing.target import Broken, Target, one_line, scratch


def check(case: dict[str, Any]) -> None:
    """Raise `Broken` where a case breaks a law."""
    _warm()
    with scratch() as folder:
        text, file, run = case.get("preset"), str(folder / "case.yaml"), None
        if text is not None:
            Path(file).write_bytes(text.encode("utf-8", "surrogatepass"))
        with watched():
            if "whole" in case:
                run = _tried(lambda: schema.validate(_node(case["whole"])))
            if text is not None:
                _tried(lambda: presets.read(file))
                _tried(lambda: pipelines.preset(file))
            if "words" in case:
                run = _tried(lambda: compose("smoke" if text is None else file, case["words"]))
            if run is not None:
                _tried(lambda: pipelines.pipeline(run.transforms))
                again = _tried(lambda: _through_a_file(run))
                if repr(again) != repr(run):  # in words, for NaN is not itself
                    raise Broken(f"written and read again, a configuration is another: {again} from {run}")


def _node(text: str) -> DictConfig:
    """A configuration of its text; what is none is nobody's business here."""
    try:
        made = OmegaConf.create(text)
    except Exception as error:
        raise ValueError("no configuration") from error
    if not isinstance(made, DictConfig):
        raise ValueError("no configuration")
    return made


def _through_a_file(run: Run) -> Run:
    """Written as YAML, read again and checked again."""
    text = OmegaConf.to_yaml(OmegaConf.create(dataclasses.asdict(run)))
    return schema.validate(DictConfig(OmegaConf.create(text)))


@cache
def _warm() -> None:
    """Modules that every run imports are there before anything is watched."""
    for name in ("smoke", "evaluate", "patch"):
        pipelines.pipeline(compose(name).transforms)
    composed()


def _tried(step: Any) -> Any:
    """What it returns; None where it is refused as it should be."""
    try:
        return step()
    except (ValueError, OSError) as error:
        one_line(error)
        return None


TARGET = Target("configs", CASES, check, ready=_warm)
