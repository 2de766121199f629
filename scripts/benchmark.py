"""Run a benchmark: `python scripts/benchmark.py --help` names them, docs/benchmarks.md describes them."""

from benchmarks.commands import main

if __name__ == "__main__":
    main()
