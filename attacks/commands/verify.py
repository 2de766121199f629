"""Check a finished run, also one that somebody sends you. No attack step is made.

    viewproof verify outputs/my_run
    viewproof verify outputs/my_run --sample 1     # judge every view again

Prints PASS and what was checked, or a line for each thing that does not agree; the exit code is then 1. It is 5 where
the check itself failed, which says nothing about the run.
"""

import argparse
import sys
import traceback

from attacks.commands import add_encoder
from attacks.runtime.command_line import printable
from attacks.schema.secrets import refuse_credentials
from attacks.verification.records import CheckerError
from attacks.verification.verify import verify


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the directory of the run")
    parser.add_argument("--sample", type=float, default=0.1, metavar="SHARE", help="of the views to judge again")
    parser.add_argument("--seed", type=int, metavar="N", help="of the sample, as a check printed it (default: drawn)")
    add_encoder(parser)


def run(options: argparse.Namespace) -> int:
    """Print the verdict; 1 where something does not agree."""
    refuse_credentials(options.run, "`RUN`")
    arguments = {"program": options.encoder_code, "device": options.device, "seed": options.seed}
    try:
        verdict = verify(options.run, options.sample, **arguments)
    except CheckerError as error:
        traceback.print_exception(error.__cause__)
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 5  # 3 and 4 are those of a gate
    print(verdict)
    return 0 if verdict.passed else 1
