"""Bad objects under the eyes of the job: control.json, an older attempt's progress, its spec, and files on the shared mount."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.contract import Control, RunKeys, SharedPaths
from nightshift.contract.control import ControlCommand
from nightshift.contract.evals import EvalSet
from nightshift.contract.reading import MAX_DOCUMENT, Unreadable
from nightshift.contract.spec import LoraSettings, Training
from tests.builders import NOW, progress, spec, summary
from tests.garbage.strategies import stored
from training_job.checkpoints import part_file, problems_of_files, read_pointer
from training_job.errors import BadConfiguration
from training_job.evals import published_summaries
from training_job.guard import guard
from training_job.progress import ProgressReporter
from training_job.run import _acknowledged_before, read_spec
from training_job.trainers.local.learner import Learner
from training_job.trainers.local.snapshots import TrainerState, problems_of_snapshot, save_snapshot

KEYS = RunKeys("maze-1")
MODEL = Path(__file__).resolve().parents[1] / "fixtures" / "text_task" / "echo_task" / "model"
STOP = Control(run_id="maze-1", seq=3, command=ControlCommand.STOP_AFTER_CHECKPOINT, reason="cancelled", at=NOW)


class Store:
    """One bucket in memory."""

    def __init__(self, **objects: bytes) -> None:
        self.objects = objects

    def get(self, key: str) -> bytes | None:
        return self.objects.get(key)

    def get_small(self, key: str, limit: int) -> bytes | None:
        found = self.objects.get(key)
        if found is not None and len(found) > limit:
            raise Unreadable(f"its {len(found)} bytes are more than {limit}")
        return found

    def put(self, key: str, content: bytes) -> None:
        self.objects[key] = content

    def listing(self, prefix: str) -> dict[str, str]:
        return {key: "" for key in self.objects if key.startswith(prefix)}


@settings(max_examples=60, deadline=None)
@given(stored(json.loads(STOP.to_json())))
def test_no_control_object_breaks_a_job_and_bad_ones_are_told_once(body: bytes) -> None:
    told: list[str] = []
    reporter = ProgressReporter(Store(**{KEYS.control: body}), progress(), warn=told.append)
    try:
        asked = [reporter.read_control_now() for _ in range(3)][-1]
    finally:
        reporter.close()
    assert asked is None or asked.run_id == "maze-1"
    assert len(told) <= 1 and all(t.startswith(f"{KEYS.control} is not believed: ") for t in told)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (STOP.to_json().replace("maze-1", "maze-2"), "it is of run maze-2"),
        (STOP.to_json().replace('"version": 1', '"version": 2'), "newer than what reads it"),
        (STOP.to_json().replace("stop_after_checkpoint", "sing"), "command: "),
        (STOP.to_json() + " " * MAX_DOCUMENT, "bytes are more than"),
    ],
)
def test_a_bad_request_is_named_and_not_carried_out(body: str, told: str) -> None:
    heard: list[str] = []
    reporter = ProgressReporter(Store(**{KEYS.control: body.encode()}), progress(), warn=heard.append)
    try:
        assert reporter.read_control_now() is None
    finally:
        reporter.close()
    assert told in heard[0] and KEYS.control in heard[0]


@pytest.mark.parametrize(
    ("body", "acknowledged"),
    [
        (progress(acknowledged=5).to_json(), 5),
        (progress(acknowledged=5, attempt=2).to_json(), 0),
        (progress(acknowledged=5, run_id="maze-2").to_json(), 0),
        (progress(acknowledged=5).to_json()[:-9], 0),
        ("", 0),
    ],
)
def test_only_the_attempt_before_says_what_it_carried_out(body: str, acknowledged: int) -> None:
    assert _acknowledged_before(Store(**{KEYS.progress(1): body.encode()}), KEYS, 2) == acknowledged


@settings(max_examples=60, deadline=None)
@given(stored(json.loads(spec().model_dump_json())))
def test_a_spec_that_cannot_be_used_is_bad_configuration_by_name(body: bytes) -> None:
    try:
        assert read_spec(Store(**{KEYS.spec: body}), "maze-1").run_id == "maze-1"
    except BadConfiguration as refused:
        assert "spec.json" in str(refused) and len(str(refused)) < 1_200


@settings(max_examples=60, deadline=None)
@given(stored(json.loads(summary(20, 30).to_json())))
def test_a_curve_is_drawn_from_summaries_that_say_what_their_keys_say(body: bytes) -> None:
    good, key = KEYS.eval_summary(1, 10, EvalSet.FIXED), KEYS.eval_summary(1, 20, EvalSet.FIXED)
    found = published_summaries(Store(**{good: summary(10, 20).to_json().encode(), key: body}), "maze-1")
    assert [s.step for s in found] in ([10], [10, 20])


# Files on the shared mount


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> SharedPaths:
    """Whole checkpoints of steps 4 and 8, and a pointer that names 8."""
    torch.set_num_threads(1)
    paths = SharedPaths("run", tmp_path_factory.mktemp("saved"))
    learner = Learner(MODEL, LoraSettings(rank=2, alpha=4), Training())
    for at in (4, 8):
        save_snapshot(paths, learner, TrainerState(at, 0), MODEL)
    return paths


def _damaged(data: st.DataObject, whole: bytes) -> bytes:
    how = data.draw(st.sampled_from(["bytes", "json", "cut", "flipped", "head"]))
    if how == "bytes":
        return data.draw(st.binary(max_size=300))
    if how == "json":
        return json.dumps(
            data.draw(st.recursive(st.integers() | st.none(), lambda x: st.lists(x, max_size=2)))
        ).encode()
    if how == "cut":
        return whole[: data.draw(st.integers(0, len(whole) - 1))]
    at = data.draw(st.integers(0, (200 if how == "head" else len(whole)) - 1).filter(lambda i: i < len(whole)))
    return whole[:at] + data.draw(st.binary(min_size=1, max_size=8)) + whole[at + 8 :]


FILES = {
    "trainer_state.pt": ("trainer_state.pt",),
    "data.pt": ("data.pt",),
    "model": ("policy", part_file("model")),
    "fsdp_config.json": ("policy", "fsdp_config.json"),
    "adapter_config.json": ("policy", "lora_adapter", "adapter_config.json"),
    "adapter": ("policy", "lora_adapter", "adapter_model.safetensors"),
}


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_bytes_in_a_checkpoints_file_break_the_check(saved: SharedPaths, name: str, data: st.DataObject) -> None:
    path = saved.checkpoint(8).joinpath(*FILES[name])
    whole = path.read_bytes()
    try:
        path.write_bytes(_damaged(data, whole))
        found = problems_of_files(saved.checkpoint(8))
        assert all(p.startswith(f"{path.relative_to(saved.checkpoint(8))}: ") and len(p) < 600 for p in found)
        if name in ("trainer_state.pt", "adapter"):
            assert found or problems_of_snapshot(saved.checkpoint(8), 8) is not None, (
                "the trainer's own check answers too"
            )
    finally:
        path.write_bytes(whole)


HEADERS = {
    "a list": b"[]",
    "a number": b"7",
    "entries that are no objects": b'{"a": 3}',
    "no offsets": b'{"a": {}}',
    "offsets that are no numbers": b'{"a": {"data_offsets": ["x", "y"]}}',
    "endless offsets": b'{"a": {"data_offsets": [0, 1e400]}}',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("header", HEADERS)
def test_a_safetensors_header_that_is_none_puts_its_checkpoint_aside(
    saved: SharedPaths, tmp_path: Path, header: str
) -> None:
    shutil.copytree(saved.mount, tmp_path / "shared")
    paths = SharedPaths("run", tmp_path / "shared")
    body = HEADERS[header]
    paths.checkpoint(8).joinpath(*FILES["adapter"]).write_bytes(len(body).to_bytes(8, "little") + body + b"\0" * 16)
    report = guard(paths, 4, 4, 2)
    assert (report.resumed_step, report.quarantined) == (4, ["global_step_8.a2"])
    assert any("adapter_model.safetensors" in note for note in report.notes)


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=300),
        st.text(max_size=50).map(str.encode),
        st.integers(-(10**30), 10**30).map(lambda i: str(i).encode()),
    )
)
def test_a_pointer_is_a_step_or_says_what_it_is_not(body: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(body)
        file.flush()
        found = read_pointer(Path(file.name))
    assert (found.step is not None and 0 <= found.step < 10**12) or "pointer" in found.note
