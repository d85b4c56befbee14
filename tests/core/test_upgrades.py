"""The same request is the same run before and after an upgrade, and its spec is read by what is older and by what is newer.

``fixtures/base`` is the first release's: every field of its spec, a spec.json that it wrote, and below the digests it computed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from nightshift.contract.spec import RunSpec, spec_digest
from nightshift.contract.tracking import Tracker, Tracking
from nightshift.contract.upgrades import LATER, MOVED, spec_file
from nightshift.core.admission import check_spec
from tests.builders import spec, spec_json
from tests.upgrade.told import documents, read, versions

BASE = Path(__file__).parent.parent / "fixtures" / "base"
BASE_FIELDS = frozenset((BASE / "fields.txt").read_text().split())
GONE = {f"training.skyrl.{name}" for name in MOVED}
FIRST_WITH = {  # what a later field had in it when it came
    "plateau.evals", "plateau.min_gain", "publish.model_package_group", "rehearsal.of", "rehearsal.number",
    "tracking.tracker", "tracking.project", "tracking.mlflow_uri",
    "retention.succeeded_days", "retention.rest_days", "retention.failed_days", "retention.cancelled_days",
}  # fmt: skip

SMALL = spec_json()
SKYRL = {"vision": False, "overrides": {"trainer.policy.optimizer_config.weight_decay": 1e-2}}
LARGE = spec_json(
    pool="night",
    priority="urgent",
    target={"success": 0.5},
    training={"learning_rate": 3e-6, "temperature": 1, "skyrl": SKYRL},
    budgets={"dollars": 120.5},
    task={**SMALL["task"], "config": {"recipe": "sft", "name": "Größe", "x": 1e-7, "n": float("inf")}},
)
TRACKED = spec_json(training={"skyrl": {"tracker": "wandb", "project": "mazes"}})


def paths(kind: Any, above: str = "") -> Iterator[str]:
    """Dotted paths of all fields of a model, through optional ones and unions."""
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        for part in get_args(kind):
            yield from paths(part, above)
        return
    for name, field in kind.model_fields.items():
        yield f"{above}{name}"
        yield from paths(field.annotation, f"{above}{name}.")


def keys(raw: Any, above: str = "") -> Iterator[str]:
    for name, value in raw.items():
        yield f"{above}{name}"
        if isinstance(value, dict):
            yield from keys(value, f"{above}{name}.")


@pytest.mark.parametrize(
    ("raw", "digest"),
    [
        (SMALL, "4a6848930a05bcccfd85e69749f79f3db5ebe79395c77ec28930ce41a47a2434"),
        (LARGE, "792241dcc8ba38be04e3740d798692b2f93dec39d79ad099962688802d513858"),
        (TRACKED, "e7022adc76bcc0e410cc06266d218c5f2efa02f36d87255ef793d81491fe1a94"),
    ],
    ids=["small", "large", "tracked"],
)
def test_a_request_of_the_first_release_still_has_the_digest_that_was_computed_then(
    raw: dict[str, Any], digest: str
) -> None:
    assert spec_digest(RunSpec.model_validate(raw)) == digest


def test_a_later_field_that_is_written_out_at_its_default_is_the_same_request_and_one_that_is_set_another() -> None:
    written_out = {
        "plateau": None,
        "project": None,
        "publish": None,
        "retention": None,
        "secrets": {},
        "tracking": {"tracker": "console"},
    }
    assert spec_digest(spec(**written_out, budgets={"download_minutes": 120})) == spec_digest(spec())
    others = (
        {"plateau": {}}, {"publish": {"model_package_group": "mazes"}}, {"secrets": {"A": "b"}},
        {"tracking": {"tracker": "wandb"}}, {"tracking": {"project": "p"}}, {"budgets": {"download_minutes": 121}},
        {"tracking": {"mlflow_uri": "https://mlflow"}}, {"project": "mazes"}, {"retention": {}},
    )  # fmt: skip
    assert len({spec_digest(spec(**change)) for change in ({}, *others)}) == len(others) + 1


def test_every_field_is_one_of_the_first_release_or_is_listed_as_a_later_one() -> None:
    """Whoever adds a field lists it under ``upgrades.LATER``; ``fields.txt`` is never changed."""
    assert set(paths(RunSpec)) - set(LATER) == (BASE_FIELDS - GONE) | FIRST_WITH
    assert set(LATER) <= set(paths(RunSpec)) and not set(LATER) & BASE_FIELDS


def test_a_stored_spec_has_later_fields_only_where_they_are_set() -> None:
    found = json.loads(spec_file(spec()))
    assert set(keys(found)) <= BASE_FIELDS, "an older image reads it"
    assert set(keys(json.loads(spec_file(spec(plateau={}))))) - BASE_FIELDS == {
        "plateau", "plateau.evals", "plateau.min_gain",
    }  # fmt: skip
    full = spec(plateau={}, tracking={"project": "p"}, secrets={"A": "b"}, budgets={"download_minutes": 5})
    assert RunSpec.model_validate_json(spec_file(full)) == full


def grown(value: Any) -> Any:
    """What a newer release would write in the place of a document: every part of it has a field more."""
    match value:
        case BaseModel():
            named = {
                field.alias or name: grown(getattr(value, name)) for name, field in type(value).model_fields.items()
            }
            return named | {"a_newer_field": {"of": ["a", "newer", "kind"]}}
        case list() | tuple():
            return [grown(one) for one in value]
        case dict():
            return {name: grown(one) for name, one in value.items()}
    return to_jsonable_python(value)


@pytest.mark.parametrize("name", documents())
def test_a_newer_field_in_any_part_of_a_document_is_ignored_and_the_rest_is_read(name: str) -> None:
    """Functions are exchanged one after another, and a way back is an upgrade too: there is always somebody newer."""
    kind = documents()[name]
    whole = list(versions(kind))[1]
    document = kind.model_validate(whole)

    assert read(name, grown(document)) == {"read": whole}


def old(**skyrl: Any) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads((BASE / "spec.json").read_text())
    raw["training"]["skyrl"] |= skyrl
    return raw


def test_a_tracker_in_its_old_place_is_the_runs_tracker() -> None:
    asked, before = old(tracker="tensorboard", project="mazes"), old(tracker="tensorboard", project="mazes")
    assert RunSpec.model_validate(asked).tracking == Tracking(tracker=Tracker.TENSORBOARD, project="mazes")
    assert asked == before, "what was sent is not changed: its digest names a refusal"
    assert RunSpec.model_validate(old() | {"tracking": {"project": "p"}}).tracking == Tracking(project="p")
    same = old(tracker="tensorboard") | {"tracking": {"tracker": "tensorboard"}}
    assert RunSpec.model_validate(same).tracking.tracker is Tracker.TENSORBOARD


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (old(tracker="wandb") | {"tracking": {"tracker": "tensorboard"}}, "training.skyrl.tracker"),
        (old(tracker="nobody"), "tracking.tracker"),
        (old(tracker=["x"]), "tracking.tracker"),
        (old(tracker="wandb") | {"tracking": 7}, "tracking"),
        (old() | {"training": 7}, "training"),
        (old() | {"training": {"skyrl": 7}}, "training.skyrl"),
    ],
    ids=["contradiction", "unknown", "list", "tracking", "training", "skyrl"],
)
def test_what_cannot_be_moved_is_an_error_of_its_field(raw: dict[str, Any], field: str) -> None:
    found = check_spec(raw)
    assert isinstance(found, list) and field in {e.field for e in found}
    with pytest.raises(ValidationError):
        RunSpec.model_validate(raw)
