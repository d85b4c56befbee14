"""Which release is the one before, and what happens where it is not to be had."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from local.config import REPOSITORY
from tests.upgrade import previous as module
from tests.upgrade.previous import NoHistory, NoRelease, export, named, pins


def git(*argv: str) -> None:
    subprocess.run(["git", *argv], check=True, capture_output=True, timeout=60)


def test_its_line_names_a_version_and_a_whole_commit() -> None:
    version, commit = named()
    assert version.count(".") == 2 and len(commit) == 40


def test_where_there_is_no_history_it_says_so_and_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(NoHistory, match="no git clone, and the release before"):
        export(tmp_path / "out", tmp_path)
    origin, shallow = tmp_path / "origin", tmp_path / "shallow"
    made = ["-C", str(origin), "-c", "user.name=n", "-c", "user.email=e@x", "commit", "-qm", "m", "--allow-empty"]
    git("init", "-q", str(origin))
    git(*made)
    git(*made)
    git("clone", "-q", "--depth", "1", f"file://{origin}", str(shallow))
    with pytest.raises(NoHistory, match="this clone is shallow"):
        export(tmp_path / "out", shallow)
    with pytest.raises(NoRelease, match="its history is whole"):
        export(tmp_path / "out", origin)


def test_a_wrong_line_is_an_error_in_a_whole_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if (REPOSITORY / ".git" / "shallow").exists() or not (REPOSITORY / ".git").exists():
        pytest.skip("this clone is not whole")
    monkeypatch.setattr(module, "RELEASES", tmp_path / "RELEASES")
    (tmp_path / "RELEASES").write_text(f"# a note\n9.9.9 {'0' * 40}\n")
    with pytest.raises(NoRelease, match="000000"):
        export(tmp_path / "out")


def test_the_same_pins_are_the_same_environment_whatever_stands_beside_them(tmp_path: Path) -> None:
    plain, hashed = tmp_path / "plain.txt", tmp_path / "hashed.txt"
    plain.write_text("# a head\nBoto3==1.2.3\ntyping_extensions==4.0\n")
    hashed.write_text("boto3==1.2.3 \\\n    --hash=sha256:ab\ntyping-extensions==4.0 ; python_version < '3.13'\n")
    assert pins(plain) == pins(hashed) == {"boto3==1.2.3", "typing-extensions==4.0"}
    hashed.write_text("boto3==1.2.4 --hash=sha256:ab\n")
    assert pins(plain) != pins(hashed)
