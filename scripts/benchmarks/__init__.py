"""The benchmarks behind `scripts/benchmark.py`."""
