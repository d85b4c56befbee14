"""Looks for secrets in everything that git keeps: ``python .ci/secrets.py`` in .venv-tools. What is known to be none stands in
.ci/known-secrets.txt, one line each: path | kind | how often | why it is none. Exit status 1 for anything else, and for a line
that nothing needs any more.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KNOWN = ROOT / ".ci/known-secrets.txt"
NOT_READ = re.compile(
    r"(requirements[^/]*\.txt|package-lock\.json|\.schema\.json|dashboard\.json|\.png|\.npz|\.safetensors)$"
)
"""Made by tools, or no text."""

FORMS = (
    "AWSKeyDetector", "BasicAuthDetector", "GitHubTokenDetector", "GitLabTokenDetector", "JwtTokenDetector",
    "NpmDetector", "OpenAIDetector", "PrivateKeyDetector", "PypiTokenDetector", "SendGridDetector", "SlackDetector",
    "StripeDetector", "TwilioKeyDetector",
)  # fmt: skip
"""Secrets that have a form of their own."""

Finding = tuple[str, str]


def known(text: str) -> dict[Finding, int]:
    """(path, kind) -> how often. Raises ValueError for a line without a reason."""
    found = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        parts = [part.strip() for part in line.split("|")]
        if len(parts) != 4 or not parts[2].isdigit() or len(parts[3]) < 10:
            raise ValueError(f"not `path | kind | how often | why it is none`: {line}")
        found[parts[0], parts[1]] = int(parts[2])
    return found


def judged(found: Mapping[Finding, int], allowed: Mapping[Finding, int]) -> list[str]:
    """What is wrong, a line each; no secret is repeated in it."""
    news = [
        f"{path}: {kind} ({number} of them, {allowed.get((path, kind), 0)} known)"
        for (path, kind), number in sorted(found.items())
        if number > allowed.get((path, kind), 0)
    ]
    gone = [
        f"{path}: {kind} is in .ci/known-secrets.txt more often than in the file"
        for (path, kind), number in sorted(allowed.items())
        if number > found.get((path, kind), 0)
    ]
    return news + gone


def scan(paths: Iterable[str], detectors: Iterable[str]) -> Counter[Finding]:
    from detect_secrets.core.scan import scan_file
    from detect_secrets.settings import transient_settings

    with transient_settings({"plugins_used": [{"name": name} for name in detectors]}):
        return Counter((path, secret.type) for path in paths for secret in scan_file(path))


def main() -> int:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    paths = [path for path in listed if path and not NOT_READ.search(path)]
    # Tests are full of passwords that open nothing: there only what has the form of a real one counts.
    tests = [path for path in paths if path.startswith("tests/")]
    found = scan(tests, FORMS) + scan(sorted({*paths} - {*tests}), (*FORMS, "KeywordDetector"))
    wrong = judged(found, known(KNOWN.read_text()))
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
