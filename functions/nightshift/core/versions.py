"""Versions that are part of what a run was made from."""

from nightshift.contract.versions import SKYRL as SKYRL_VERSION

__all__ = ["CONTROLLER_VERSION", "SKYRL_VERSION"]

CONTROLLER_VERSION = "0.1.0"
