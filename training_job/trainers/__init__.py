"""Trainers. Each turns a run spec into steps, checkpoints, evals and exports of the same layout."""
