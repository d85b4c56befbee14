"""Texts that would be worse than none if they were wrong."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import yaml

from nightshift.contract.events import Stage
from nightshift.core.causes import POLICIES, Action, EndCause
from nightshift.core.raycluster import Placement, raycluster_manifest
from nightshift.core.run import RunState
from tests.builders import spec
from tests.deploy.repository import ROOT, resources, template, tool
from tests.upgrade.previous import NEWER_WORDS
from training_job.__main__ import parser
from training_job.gc.rule import Periods

OPERATIONS = (ROOT / "docs/operations.md").read_text()
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "container/README.md", "bench/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
TEXT_OF = {
    Action.RECOVER: "goes on",
    Action.WAIT: "waits",
    Action.ASK: "asks",
    Action.GIVE_UP: "gives up",
    Action.DONE: "done",
}


def test_the_published_schema_is_the_models() -> None:
    made = runpy.run_path(str(ROOT / "docs/write_schema.py"))["schema_text"]()
    assert (ROOT / "docs/runspec.schema.json").read_text() == made, "run `make schema`"


@pytest.mark.parametrize("cause", EndCause)
def test_every_end_cause_is_explained_with_what_follows(cause: EndCause) -> None:
    [row] = [line for line in OPERATIONS.splitlines() if line.startswith(f"| `{cause}` | ") and line.count("|") == 4][
        -1:
    ]
    then = row.split("|")[2].strip()
    assert then == TEXT_OF[POLICIES[cause].action]


def test_every_state_and_every_stage_is_explained() -> None:
    named = set(re.findall(r"`([a-z_]+)`", OPERATIONS))
    assert {state.value for state in RunState} <= named
    assert {stage.value for stage in Stage} <= named


def test_every_parameter_is_explained() -> None:
    text = (ROOT / "docs/deploying.md").read_text()
    assert [name for name in template()["Parameters"] if f"`{name}`" not in text] == []


def test_the_page_on_upgrading_names_every_word_that_the_release_before_cannot_read() -> None:
    text = (ROOT / "docs/upgrading.md").read_text()
    words = {word for many in NEWER_WORDS.values() for word in many}
    assert [word for word in words if f"`{word}`" not in text] == []
    assert ("there is no such word" in text) == (not words)


def test_the_page_on_upgrading_says_what_a_run_that_cannot_be_read_ends_as_and_what_to_look_at() -> None:
    text = (ROOT / "docs/upgrading.md").read_text()
    names = {one.removeprefix("python -m cli ").split()[0] for one in re.findall(r"`(python -m cli [^`]+)`", text)}
    known = set(re.findall(r'command\("([a-z-]+)"', (ROOT / "cli/main.py").read_text()))
    assert {"list", "status", "retry"} <= names <= known
    assert EndCause.CONTROLLER_FAULT in POLICIES and f"`{EndCause.CONTROLLER_FAULT}`" in text
    assert 'name="OldestLookAgeSeconds"' in (ROOT / "functions/nightshift/handlers/reconciler.py").read_text()
    kept = {
        one["Type"].split("::")[1] for one in template()["Resources"].values() if one.get("DeletionPolicy") == "Retain"
    }
    assert {"DynamoDB", "S3", "IAM", "EKS"} <= kept, (
        "what an upgrade leaves as it is, a mistaken one does not delete either"
    )


def test_every_make_target_that_a_document_names_is_there() -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    for path in DOCUMENTS:
        assert set(re.findall(r"(?m)(?:`|^)make ([a-z-]+)", path.read_text())) <= targets, path.name


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_and_paths_lead_somewhere(path: Path) -> None:
    text = path.read_text()
    links = [one for one in re.findall(r"\]\(([^)#\s]+)\)", text) if "://" not in one]
    assert [one for one in links if not (path.parent / one).exists()] == []
    folders = (
        "docs/",
        "local/",
        "container/",
        "events/",
        "examples/",
        "training_job/",
        "functions/",
        "statemachine/",
        "tests/",
    )
    mentioned = [one for one in re.findall(r"`([\w./-]+)`", text) if one.startswith(folders)]
    assert [one for one in mentioned if not (ROOT / one).exists()] == []


def test_the_readme_opens_with_the_two_commands_and_says_what_must_be_said() -> None:
    text = (ROOT / "README.md").read_text()
    assert text.index("make demo") < text.index("make test") < text.index("## How it works")
    flat = " ".join(text.split())
    for said in (
        "deficit is designed in",
        "picked on the 64 eval mazes",
        "tuned on two seeds",
        "500 hold-out mazes",
        "up to 4 optimizer updates",
    ):
        assert said in flat, said
    assert re.search(r"64 of the 64 mazes within 20 turns, and 50 of 64 within 15", flat)


def test_the_rbac_group_is_the_one_that_the_access_entry_gives() -> None:
    documents = list(yaml.safe_load_all((ROOT / "docs/rbac.yaml").read_text()))
    subjects = {one["name"] for document in documents for one in document.get("subjects", [])}
    [entry] = resources("AWS::EKS::AccessEntry").values()
    assert list(subjects) == entry["KubernetesGroups"]
    rules = [rule for document in documents for rule in document.get("rules", [])]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get", "list"}, "the group only reads"


def test_the_doctors_job_asks_what_the_doctor_understands_where_a_run_would_be() -> None:
    job = yaml.safe_load((ROOT / "docs/doctor.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["command"][:3] == ["python", "-m", "training_job"]
    asked = parser().parse_args(container["command"][3:])
    assert (asked.command, asked.gpus) == ("doctor", int(container["resources"]["limits"]["nvidia.com/gpu"]))

    placement = Placement(namespace="n", service_account=pod["serviceAccountName"], shared_claim="c")
    manifest = raycluster_manifest(spec(), "team", placement)
    worker = manifest["spec"]["workerGroupSpecs"][0]["template"]["spec"]
    assert container["env"] == worker["containers"][0]["env"]
    assert worker["containers"][0]["volumeMounts"][0] in container["volumeMounts"]
    defaults = {name: one.get("Default") for name, one in template()["Parameters"].items()}
    assert job["metadata"]["namespace"] == defaults["Namespace"]
    assert pod["serviceAccountName"] == defaults["ServiceAccountName"]
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == defaults["SharedClaimName"]


def test_the_nightly_collection_of_garbage_is_what_the_command_takes_where_a_run_has_its_files() -> None:
    cron = yaml.safe_load((ROOT / "docs/gc.yaml").read_text())
    pod = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["command"][:3] == ["python", "-m", "training_job"]
    asked = vars(parser().parse_args(container["command"][3:]))
    plain = vars(parser().parse_args(["gc", "--bucket=BUCKET", "--table=TABLE"]))
    assert asked == plain, "the periods are the command's own, written out"
    assert not asked["dry_run"] and {f"--{name}-days=" in str(container["command"]) for name in vars(Periods())} == {
        True
    }
    assert (cron["kind"], cron["spec"]["concurrencyPolicy"], pod["restartPolicy"]) == ("CronJob", "Forbid", "Never")
    assert re.fullmatch(r"\d+ \d+ \* \* \*", cron["spec"]["schedule"])

    placement = Placement(namespace="n", service_account="s", shared_claim="c")
    worker = raycluster_manifest(spec(), "team", placement)["spec"]["workerGroupSpecs"][0]["template"]["spec"]
    [shared] = [one for one in worker["containers"][0]["volumeMounts"] if one["mountPath"] == "/shared"]
    assert container["volumeMounts"] == [shared]
    assert {"name": "NIGHTSHIFT_SHARED", "value": "/shared"} in container["env"]
    defaults = {name: one.get("Default") for name, one in template()["Parameters"].items()}
    assert cron["metadata"]["namespace"] == defaults["Namespace"]
    assert pod["serviceAccountName"] == defaults["ServiceAccountName"]
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == defaults["SharedClaimName"]
    assert pod["nodeSelector"]["node.kubernetes.io/instance-type"] == spec().topology.head.instance_type


def test_the_periods_that_the_text_names_are_the_commands() -> None:
    for name, days in vars(Periods()).items():
        assert f"| `--{name}-days` | {days} |" in OPERATIONS


def test_make_help_lists_every_command_that_the_texts_name() -> None:
    listed = set(re.findall(r"^make (\w+)", tool("make", "help").stdout, re.MULTILINE))
    named = {one for path in DOCUMENTS for one in re.findall(r"(?:^|`)make ([a-z]+)", path.read_text(), re.MULTILINE)}
    assert named
    assert named <= listed
