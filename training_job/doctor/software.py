"""Versions, VisGym and the user: what is fixed when an image is built."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Final

from nightshift.contract.versions import ADDED, IMAGE_PYTHON, LOCKED, RAY, RAY_ENV
from training_job.doctor.finding import Finding, Place, no, not_here, ok
from training_job.errors import BadConfiguration

REBUILD: Final = "Build the image from container/Dockerfile (container/README.md)."
MAZE: Final = "maze_2d/easy"

Installed = Callable[[str], str | None]


def installed(package: str) -> str | None:
    """The version of an installed distribution, without the label of its build (``+cu128``); None where there is none."""
    try:
        return version(package).split("+")[0]
    except PackageNotFoundError:
        return None


def ray_problem(environment: Mapping[str, str] = os.environ, find: Installed = installed) -> str | None:
    """Why the controller's Ray client and the image's Ray are no tested pair; None where they are one, or nobody said which
    client there is."""
    wanted, here = environment.get(RAY_ENV), find("ray")
    if not wanted or here == wanted:
        return None
    return (
        f"the image has {f'Ray {here}' if here else 'no Ray'}, the controller's client is of Ray {wanted}: "
        "name an image that was built with it (container/README.md)"
    )


def hold_ray_version() -> None:
    """The job's first question, before anything is paid for. Raises BadConfiguration."""
    problem = ray_problem()
    if problem is not None:
        raise BadConfiguration("image", problem)


def python_version(place: Place, here: tuple[int, int] = sys.version_info[:2]) -> Iterator[Finding]:
    """SkyRL runs on one version; everything else of ours on three."""
    told = f"{here[0]}.{here[1]}"
    if place.image and told != IMAGE_PYTHON:
        yield no("python", f"{told}, SkyRL needs {IMAGE_PYTHON}", REBUILD)
    elif not (3, 11) <= here <= (3, 13):
        yield no("python", told, "Use Python 3.11 to 3.13.")
    else:
        yield ok("python", told)


def packages(
    place: Place, environment: Mapping[str, str] = os.environ, find: Installed = installed
) -> Iterator[Finding]:
    """Every package of the lock that matters. Outside of the image only Ray must be the one that was tested."""
    problem = ray_problem({RAY_ENV: environment.get(RAY_ENV) or RAY}, find)
    yield no("ray", problem, REBUILD) if problem else ok("ray", f"{find('ray')}, as the controller's client")
    is_image = place.image or find("skyrl") is not None
    for name, wanted in {**LOCKED, **ADDED}.items():
        if name == "ray":
            continue
        here = find(name)
        if here == wanted:
            yield ok(name, here)
        elif not is_image:
            yield not_here(name, f"{here or 'not installed'}; the image has {wanted}")
        else:
            yield no(name, f"{here or 'not installed'}, tested with {wanted}", REBUILD)


def job_server(place: Place) -> Iterator[Finding]:
    """Jobs are submitted through Ray's dashboard, which ``ray`` has only with the requirements of ``ray[default]``."""
    missing = [one for one in ("aiohttp_cors", "opencensus", "prometheus_client") if find_spec(one) is None]
    if not missing:
        yield ok("job server", "ray[default] is installed")
    elif place.image:
        yield no(
            "job server", f"not installed: {', '.join(missing)}; Ray has no dashboard without ray[default]", REBUILD
        )
    else:
        yield not_here("job server", "ray[default] is not installed: no job can be submitted to a head here")


def visgym(place: Place) -> Iterator[Finding]:
    """VisGym shadows the name ``gymnasium``, and its mazes need more than it asks for: so one is looked up for real."""
    wrong: Callable[[str], Finding] = (
        (lambda why: no("VisGym", why, REBUILD))
        if place.image
        else (lambda why: not_here("VisGym", f"{why}: only the project's own mazes"))
    )
    if find_spec("gymnasium") is None:
        yield wrong("there is no gymnasium")
        return
    gymnasium = import_module("gymnasium")
    entry = gymnasium.registry.get(MAZE) if hasattr(gymnasium, "registry") else None
    if entry is None:
        yield wrong(f"gymnasium {getattr(gymnasium, '__version__', '?')} has no {MAZE}: it is not VisGym's")
        return
    module, _, name = str(entry.entry_point).partition(":")
    try:
        getattr(import_module(module), name)
    except ImportError as error:
        yield wrong(f"{MAZE} cannot be imported: {error}")
        return
    yield ok("VisGym", f"{MAZE} can be imported")


def user(place: Place, uid: int | None = None) -> Iterator[Finding]:
    """Root in a pod may write what nobody else can read on the shared file system."""
    who = os.geteuid() if uid is None else uid
    if who != 0:
        yield ok("user", f"uid {who}")
    elif place.pod or place.image:
        yield no("user", "root", "End the Dockerfile with USER ray, and set no runAsUser: 0 in the pod.")
    else:
        yield not_here("user", "root, but this is no pod")
