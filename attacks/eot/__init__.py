"""Expectation over transformation: views, the estimator of the expected loss, and its gradient."""
