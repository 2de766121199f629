"""Stages that move points."""
