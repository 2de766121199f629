"""Stages that change values where they are."""
