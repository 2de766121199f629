"""The probability of rare failures, estimated by splitting and importance sampling."""
