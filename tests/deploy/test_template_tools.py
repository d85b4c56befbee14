"""What AWS's own tools say about the template, as it is written and as it is deployed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.deploy.repository import MACHINES, ROOT, tool, translated

TOOLS = ROOT / ".venv-tools" / "bin"


def test_sam_takes_the_template_as_valid_and_has_nothing_to_say() -> None:
    done = tool(TOOLS / "sam", "validate", "--lint", "--template", ROOT / "template.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_cfn_lint_finds_nothing_in_the_template() -> None:
    done = tool(TOOLS / "cfn-lint", "--regions", "us-east-1", "--template", ROOT / "template.yaml")
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_cfn_lint_finds_nothing_in_what_is_really_deployed(tmp_path: Path) -> None:
    # A cycle between a role and what its policies name shows only after the translation.
    path = tmp_path / "translated.json"
    path.write_text(json.dumps(translated()))
    done = tool(TOOLS / "cfn-lint", "--regions", "us-east-1", "--template", path)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_what_sam_uploads_has_no_yaml_aliases_left_which_cloudformation_does_not_take() -> None:
    # The template has some. `sam package` and `sam deploy` write it anew, by these two functions.
    written = "yaml_dump(yaml_parse(open(sys.argv[1]).read()))"
    said = f"import sys; from samcli.yamlhelper import yaml_dump, yaml_parse; print({written})"
    done = tool(TOOLS / "python", "-c", said, ROOT / "template.yaml")
    assert done.returncode == 0, done.stderr
    events = list(yaml.parse(done.stdout))
    assert not [one for one in events if isinstance(one, yaml.AliasEvent) or getattr(one, "anchor", None)]
    assert [one for one in yaml.parse((ROOT / "template.yaml").read_text()) if isinstance(one, yaml.AliasEvent)]


@pytest.mark.needs_node
@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.name)
def test_asl_validator_takes_the_state_machine(path: Path) -> None:
    done = tool("node", ROOT / "node_modules/asl-validator/dist/bin/asl-validator.js", "--json-path", path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.needs_node
def test_asl_validator_refuses_a_transition_to_nowhere(tmp_path: Path) -> None:
    # Proof that the check above can fail.
    text = MACHINES[0].read_text().replace('"Next": "Look"', '"Next": "Nowhere"')
    path = tmp_path / "broken.asl.json"
    path.write_text(text)
    done = tool("node", ROOT / "node_modules/asl-validator/dist/bin/asl-validator.js", "--json-path", path)
    assert done.returncode != 0
    assert "Nowhere" in done.stdout + done.stderr
