"""Asks whether a known vulnerability is in what is deployed: ``python .ci/audit.py`` in .venv-tools. Where no service that knows
them can be reached it says so, and passes; with AUDIT=required it fails then.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DEPLOYED = ("functions/requirements.txt", "training_job/requirements.txt")
SECONDS = 30
IGNORED: dict[str, str] = {}
"""Id of a vulnerability -> why it does no harm here. Each is to be looked at again with every change of the pins."""


def judged(report: Any, required: bool) -> tuple[int, str]:
    """Exit status and what to say. ``report``: pip-audit's JSON, or None where there is none."""
    packages = report.get("dependencies", []) if isinstance(report, dict) else []
    asked = [one for one in packages if "skip_reason" not in one]
    found = [
        f"{one['name']} {one['version']}: {vulnerability['id']}, fixed in {', '.join(vulnerability['fix_versions']) or 'none'}"
        for one in asked
        for vulnerability in one["vulns"]
        if vulnerability["id"] not in IGNORED
    ]
    if found:
        return 1, "\n".join(found)
    if asked and len(asked) == len(packages):
        return 0, f"no known vulnerability in {len(asked)} packages"
    said = f"not audited: the vulnerability service knew {len(asked)} of {len(packages)} packages, or cannot be reached from here"
    return (1, f"{said}, and AUDIT=required") if required else (0, said)


def main() -> int:
    files = [part for path in DEPLOYED for part in ("-r", path)]
    asked = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner", "off", "-f", "json"]
    try:
        done = subprocess.run(
            [*asked, "--timeout", "5", *files], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        report = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        report = None
    status, said = judged(report, os.environ.get("AUDIT") == "required")
    print(said, file=sys.stderr if status else sys.stdout)
    return status


if __name__ == "__main__":
    sys.exit(main())
