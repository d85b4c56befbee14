"""Versions that were tested together: the one place of truth. The image is built from them, the RayCluster names them, the
job holds what it finds against them; tests hold the requirements, the Dockerfile and the documents against them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

RAY: Final = "2.56.0"
"""Of the image, of the job client in the functions and of ``rayVersion``: client and server are a tested pair."""

RAY_ENV: Final = "NIGHTSHIFT_RAY_VERSION"
"""Environment variable of the pods: the Ray that the controller's client is of. The job refuses an image with another."""

REVISION_ENV: Final = "NIGHTSHIFT_GIT_SHA"
"""Environment variable that only our image has: the commit that it was built from."""

IMAGE_PYTHON: Final = "3.12"
"""SkyRL asks for it."""

BASE_IMAGE: Final = "anyscale/ray:2.56.0-slim-py312-cu128"
"""What SkyRL 0.3.0 builds on."""

SKYRL: Final = "0.3.0"
SKYRL_SHA: Final = "f5bc3b78dfddfb352870d5d7430cd226e5785838"
"""The tag ``skyrl-v0.3.0``: a tag can be moved, a commit cannot."""

VISGYM_SHA: Final = "0289034b0cefa6fbbad27f7dd8c01545df324afd"

UV: Final = "0.9.4"
"""The version with which SkyRL's own image is built."""

LOCKED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ray": RAY,
        "skyrl": SKYRL,
        "skyrl-gym": "0.4.0",
        "vllm": "0.23.0",
        "torch": "2.11.0",
        "transformers": "5.8.0",
        "peft": "0.18.1",
        "pydantic": "2.13.4",
        "boto3": "1.43.0",
        "safetensors": "0.8.0",
    }
)
"""What ``uv.lock`` of SkyRL at ``SKYRL_SHA`` pins for Python 3.12 on Linux, without the label of a build (``+cu128``)."""

ADDED: Final[Mapping[str, str]] = MappingProxyType({"matplotlib": "3.11.2", "pygame": "2.6.1"})
"""What the image has beyond SkyRL's lock: for the pictures of a run, and for VisGym's mazes, which do not name it."""
