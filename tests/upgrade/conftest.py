"""The release before this code, once for all tests of this folder."""

from __future__ import annotations

import pytest

from local.config import REPOSITORY
from tests.upgrade.previous import NoHistory, Release, export


@pytest.fixture(scope="session")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Skips in a clone without history: there is nothing to compare with, and nobody to tell it otherwise. In a whole one
    a commit that is not there is an error, in CI and everywhere."""
    try:
        return export(tmp_path_factory.mktemp("previous"))
    except NoHistory as reason:
        pytest.skip(f"{reason}: no upgrade is tried. `git fetch --unshallow` brings it")


@pytest.fixture(scope="session")
def present() -> Release:
    """This code, in the same words."""
    return Release("this code", "", REPOSITORY)
