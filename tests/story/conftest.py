"""One stack and one telling of the story for all tests of this folder that look at it from outside."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator

import pytest

from local.stack import Stack
from local.story.demo import Story
from local.story.request import demo_request
from local.story.screen import Screen
from tests.story.support import Played


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(print, logs_to=tmp_path_factory.mktemp("story") / "logs") as running:
        yield running


@pytest.fixture(scope="session")
def played(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Played:
    out, terminal, request = tmp_path_factory.mktemp("out"), io.StringIO(), demo_request()
    screen = Screen(terminal)
    told = Story(stack, screen, request, out, time.monotonic() + 480).tell()
    return Played(stack, request, told, out, terminal.getvalue())
