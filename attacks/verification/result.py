"""The result of the check of a finished run."""

from dataclasses import dataclass


class CheckerError(RuntimeError):
    """`verify` itself failed, which says nothing about the run."""


@dataclass(frozen=True)
class Verification:
    """A line for each thing that does not agree, what may differ between machines, and what was checked.

    `unchecked` has a line for what could not be compared here. `seed` is that of the sample, and `missable` the
    largest change of the mean `success` of an arm, by altered views, that the sample misses with a probability above
    5 %; the cosine of a view may change by 2, so that of the mean cosine is twice as large."""

    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    checked: str = ""
    unchecked: tuple[str, ...] = ()
    seed: int | None = None
    missable: float | None = None

    @property
    def passed(self) -> bool:
        """Whether everything agrees."""
        return not self.problems

    def __str__(self) -> str:
        lines = [f"note: {note}" for note in self.notes]
        lines += [f"NOT COMPARED: {line}" for line in self.unchecked]
        if self.missable is not None:
            lines.append(
                f"sample: seed {self.seed} (--seed {self.seed} repeats it); with a probability above 5 % it misses "
                f"altered views that change the mean success of an arm by up to {self.missable:.3f}, or its mean "
                f"cosine by up to {2 * self.missable:.3f}; --sample 1 misses none"
            )
        word = "PASS, except what was not compared" if self.unchecked else "PASS"
        return "\n".join([*lines, *(self.problems or (f"{word}: {self.checked}",))])
