"""Parts that are not of this package: of installed packages, by entry point or by name, or given in Python."""

import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from hashlib import sha256
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

#: Of what a class inherits from, these are no source of its own: their versions are in the identity of a run.
FOUNDATIONS = {"attacks", "transforms", "torch", *sys.stdlib_module_names}
_given = ContextVar[Mapping[str, Any]]("given")


@contextmanager
def given(parts: Mapping[str, Any]) -> Iterator[None]:
    """Within it these parts, by their group, are found by `given_name`."""
    token = _given.set(parts)
    try:
        yield
    finally:
        _given.reset(token)


def given_parts() -> Mapping[str, Any]:
    """Those that are given now, by their group."""
    return _given.get({})


def given_name(part: Any) -> str:
    """The module and the name of the class, or of the function, of a part that is given in Python."""
    kind = _kind(part)
    return f"{kind.__module__}:{kind.__qualname__}"


class Plugin(NamedTuple):
    """A part of a group: the entry point of an installed package, or an object given in Python."""

    group: str
    name: str
    source: Any

    @property
    def package(self) -> str:
        """The package that offers it, and its version; of an object "Python"."""
        if not isinstance(self.source, EntryPoint):
            return "Python"
        dist = self.source.dist
        return "an unknown package" if dist is None else f"{dist.name} {dist.version}"

    def load(self) -> Any:
        """What the entry point names, or the object. Raises ValueError."""
        return self._answer(self.source.load) if isinstance(self.source, EntryPoint) else self.source

    def takes(self, argument: str) -> bool:
        """Whether what the entry point names is called with this argument. Raises ValueError."""
        return isinstance(self.source, EntryPoint) and argument in inspect.signature(self.load()).parameters

    def make(self, **arguments: Any) -> Any:
        """The part: what the entry point names, called, or the object itself. Raises ValueError."""
        return self._answer(self.load(), **arguments) if isinstance(self.source, EntryPoint) else self.source

    def _answer(self, call: Callable[..., Any], **arguments: Any) -> Any:
        try:
            return call(**arguments)
        except Exception as error:  # another package's code
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            raise ValueError(f"plugin {self.name} of {self.package} failed: {reason}") from error

    def digests(self) -> tuple[str, str]:
        """The SHA-256 of its source, and of the values that an object holds. Raises ValueError."""
        part = self.load()
        text = json.dumps({} if isinstance(part, type) else getattr(part, "__dict__", {}), default=_plain)
        if not (sources := "\n".join(_sources(_kind(part)))):
            raise ValueError(f"`{self.group}`: the source of {self.name} is not to be found: define it in a file")
        return sha256(sources.encode()).hexdigest(), sha256(text.encode()).hexdigest()


def plugin(group: str, name: str) -> Plugin:
    """The part of a group with this name: given, or of an entry point `viewproof.GROUPs`. Raises ValueError."""
    part = given_parts().get(group)
    if part is not None and given_name(part) == name:
        return Plugin(group, name, part)
    if ":" in name:
        fix = f"robustness(..., {group}=...), or verify(folder, parts={{'{group}': ...}})"
        raise ValueError(f"`{group}` was {name}, given in Python, which no directory holds: give it again, {fix}")
    plugins = [Plugin(group, name, point) for point in entry_points(group=f"viewproof.{group}s", name=name)]
    if not plugins:
        names = ", ".join(entry_names(group)) or "none is installed"
        raise ValueError(f"`{group}.model` must be the name of a plugin ({names}); got {name!r}")
    if len(plugins) > 1:
        packages = ", ".join(sorted(part.package for part in plugins))
        raise ValueError(f"`{group}.model`: {name} is offered by more than one package ({packages}); uninstall one")
    return plugins[0]


def entry_names(group: str) -> list[str]:
    """The names of the entry points of a group."""
    return sorted({point.name for point in entry_points(group=f"viewproof.{group}s")})


def import_object(place: str, key: str) -> Any:
    """The object `module:attribute` of a module in the working directory, or of an installed one; importing runs the
    module. Raises ValueError with the `key` where there is none, whatever the import raised."""
    module, _, name = place.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise ValueError(f"`{key}` must be module:attribute, in this folder or installed; got {place!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return attrgetter(name)(importlib.import_module(module))
    except Exception as error:  # the user's code
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise ValueError(f"`{key}`: {place} cannot be imported ({reason}); run from its folder") from error
    finally:
        sys.path.remove(str(Path.cwd()))


def _kind(part: Any) -> Any:
    return part if isinstance(part, type) or inspect.isroutine(part) else type(part)


def _sources(kind: Any) -> Iterator[str]:
    """The source of a function, or of a class and its bases but `FOUNDATIONS`; in a notebook that of methods."""
    bases = kind.__mro__ if isinstance(kind, type) else (kind,)
    for base in (base for base in bases if base.__module__.partition(".")[0] not in FOUNDATIONS):
        try:
            yield inspect.getsource(base)
        except (OSError, TypeError):
            for member in vars(base).values():
                with suppress(OSError, TypeError):
                    yield inspect.getsource(getattr(member, "fget", None) or getattr(member, "__func__", member))


def _plain(value: Any) -> Any:
    """A tensor as the digest of its values, anything else as its class with what it holds."""
    if isinstance(value, Tensor):
        return [list(value.shape), sha256(value.detach().cpu().double().numpy().tobytes()).hexdigest()]
    values = getattr(value, "__dict__", None)
    return [given_name(value), values or re.sub(r" at 0x\w+", "", repr(value))]
