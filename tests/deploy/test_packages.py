"""What is installed where it runs: the contract alone, and the handlers under Lambda's own Python."""

from __future__ import annotations

import ast
import shutil
import sys
from pathlib import Path

import pytest

from tests.deploy.repository import ROOT, tool

CONTRACT = sorted((ROOT / "functions/nightshift/contract").glob("*.py"))
HANDLERS = sorted(path.stem for path in (ROOT / "functions/nightshift/handlers").glob("[a-z]*.py"))


def imported(path: Path) -> set[str]:
    """Top-level packages that a module imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("path", CONTRACT, ids=lambda path: path.name)
def test_the_contract_imports_pydantic_the_standard_library_and_itself(path: Path) -> None:
    foreign = {
        name
        for name in imported(path)
        if name.split(".")[0] not in {*sys.stdlib_module_names, "pydantic", "pydantic_core"}
        and not name.startswith("nightshift.contract")
    }
    assert foreign == set()


def test_the_contract_installs_alone_and_works_without_the_repository(tmp_path: Path) -> None:
    # Built from a copy: setuptools leaves folders beside what it builds.
    source, target = tmp_path / "functions", tmp_path / "site"
    shutil.copytree(ROOT / "functions", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    python = ROOT / ".venv/bin/python"
    built = tool(
        python, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check",
        "--target", target, source,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    packages = {path.relative_to(target).as_posix() for path in target.rglob("__init__.py")}
    assert packages == {"nightshift/contract/__init__.py"}
    script = (
        f"import sys; sys.path.insert(0, {str(target)!r});"
        "from nightshift.contract import RunSpec, Progress, SharedPaths;"
        "import nightshift.contract as c; print(c.__file__); print(RunSpec.__name__)"
    )
    done = tool(python, "-I", "-c", script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(target / "nightshift/contract/__init__.py"), "RunSpec"]


@pytest.mark.needs_python312
def test_every_handler_imports_under_lambdas_python_with_the_functions_requirements_only() -> None:
    script = (
        "import sys, importlib; assert sys.version_info[:2] == (3, 12), sys.version;"
        "sys.path.insert(0, 'functions'); sys.dont_write_bytecode = True;"
        f"[importlib.import_module('nightshift.handlers.' + name) for name in {HANDLERS!r}];"
        "[importlib.import_module('nightshift.adapters.' + name) for name in ('ray_jobs', 'kubernetes', 'hyperpod')];"
        "heavy = {'torch', 'moto', 'numpy', 'local', 'training_job', 'cli'} & set(sys.modules); assert not heavy, heavy"
    )
    done = tool(ROOT / ".venv-functions/bin/python", "-I", "-c", script)
    assert done.returncode == 0, done.stderr


def test_importing_a_handler_reads_no_environment_and_connects_to_nothing() -> None:
    # A variable that is missing must be an error of the first call, with its name, not a failed start without one.
    script = "import sys; sys.path.insert(0, 'functions');" + "".join(
        f"import nightshift.handlers.{n};" for n in HANDLERS
    )
    done = tool("env", "-i", ROOT / ".venv/bin/python", "-I", "-c", script)
    assert done.returncode == 0, done.stderr
