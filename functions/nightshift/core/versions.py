"""Versions that are part of what a run was made from."""

CONTROLLER_VERSION = "0.1.0"
SKYRL_VERSION = "0.3.0"
