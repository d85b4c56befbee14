"""Publish what there is, read it back, and only then call it published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from nightshift.contract.job import ExportRecord, FileDigest
from nightshift.contract.layout import RunKeys
from nightshift.contract.publication import Manifest, Provenance
from nightshift.contract.reading import Unreadable, read_document
from nightshift.contract.spec import GitCode, RunSpec
from nightshift.core.admission import known_ceiling
from nightshift.core.budgets import spend_of
from nightshift.core.errors import PublicationError
from nightshift.core.evidence import Results
from nightshift.core.observation import JobState
from nightshift.core.run import Attempt, Run, RunState
from nightshift.core.versions import CONTROLLER_VERSION, SKYRL_VERSION
from nightshift.report.card import Adapter, model_card
from nightshift.report.html import render_report
from nightshift.steps.common import attempt_line, audit, gpu_hours_of, model_of, results_of
from nightshift.steps.ports import Ports
from nightshift.steps.registering import register
from nightshift.steps.reports import tell_not_believed
from nightshift.steps.requests import Reply, StepRequest

ADAPTER_FILES = frozenset({"adapter_config.json", "adapter_model.safetensors"})
MANIFEST = "manifest.json"
SILENCE = timedelta(seconds=15)


def publish(ports: Ports, request: StepRequest) -> Reply:
    """Adapters, model cards, provenance, report, and the manifest last. Repeatable: the same evidence gives the same
    objects."""
    run = ports.runs.load(request.run_id, request.k)
    spec, attempts = ports.artifacts.spec(run.run_id), ports.runs.attempts(run.run_id)
    if run.verdict is not RunState.SUCCEEDED and attempts:
        _silence(ports, run, attempts[-1])
    found = results_of(ports, run.run_id, attempts)
    tell_not_believed(ports, run)
    keys, provenance = RunKeys(run.run_id), provenance_of(run, spec, model_of(ports, spec, attempts))
    adapters = {n: e for n, e in (("best", found.best_export), ("final", found.final_export)) if e is not None}
    manifest = _manifest(ports, run, spec, found, attempts, {n: e.step for n, e in adapters.items()})
    promised = _promised_rows(keys, found)
    for name, export in adapters.items():
        copied = ports.artifacts.copy_export(export, keys.adapter(name))
        promised |= {key.removeprefix(keys.prefix): digest.sha256 for key, digest in copied.items()}
        promised.pop(f"{keys.adapter(name)}README.md".removeprefix(keys.prefix), None)  # the card takes its place
        pictured = ports.artifacts.read_small(keys.curve_png) is not None
        facts = Adapter(name, _weights(export), export.base_licence, pictured)
        card = model_card(manifest, provenance, facts, spec).encode()
        ports.artifacts.put(run.run_id, f"{keys.adapter(name)}README.md", card, "text/markdown; charset=utf-8")
    ports.artifacts.put(run.run_id, keys.provenance, provenance.to_json().encode(), "application/json")
    objects = _objects(ports, run)
    _must_hold(run, promised, objects)
    report = render_report(manifest.model_copy(update={"objects": objects}), provenance, spec)
    digest = ports.artifacts.put(run.run_id, keys.report, report.encode(), "text/html; charset=utf-8")
    objects[keys.report.removeprefix(keys.prefix)] = digest
    complete = manifest.model_copy(update={"objects": dict(sorted(objects.items()))})
    ports.artifacts.put(run.run_id, keys.manifest, complete.to_json().encode(), "application/json")
    audit(
        ports,
        run.run_id,
        "step",
        "published",
        detail=f"{len(complete.objects)} objects, adapters: {', '.join(adapters)}",
    )
    return Reply(decision="ready", shift=str(run.shift_seq))


def _weights(export: ExportRecord) -> str | None:
    found = export.files.get("adapter_model.safetensors")
    return found.sha256 if found is not None else None


def _promised_rows(keys: RunKeys, found: Results) -> dict[str, str]:
    """Of the evals that the headline shows: key of the rows -> SHA-256 that their summary claims."""
    fixed, holdout = (found.baseline, found.final, found.best), (found.holdout_baseline, found.holdout_final)
    shown = (*fixed, *holdout, found.holdout_best)
    return {
        keys.eval_rows(s.attempt, s.step, s.eval_set).removeprefix(keys.prefix): s.rows_sha256
        for s in shown
        if s is not None
    }


def _must_hold(run: Run, promised: Mapping[str, str], stored: Mapping[str, FileDigest]) -> None:
    """What the writers of adapters and evals promised is what S3 holds, before a manifest says so."""
    wrong = [k for k, sha in promised.items() if k not in stored or stored[k].sha256 != sha]
    if wrong:
        raise PublicationError(run.run_id, f"other bytes than their writer promised, or none: {', '.join(wrong[:5])}")


def _silence(ports: Ports, run: Run, attempt: Attempt) -> None:
    """A run that is given up may still have a living job: nothing may be written below a manifest that is being made."""
    jobs, deadline = ports.jobs(run.raycluster), ports.now() + SILENCE
    while ports.now() < deadline:
        view = jobs.view(attempt.submission_id)
        if view.state not in (JobState.PENDING, JobState.RUNNING):
            return
        jobs.stop(attempt.submission_id)
        ports.sleep(1.0)


def verify(ports: Ports, request: StepRequest) -> Reply:
    """Raises PublicationError where what is stored differs from the manifest, or a success lacks its adapter."""
    run = ports.runs.load(request.run_id, request.k)
    keys = RunKeys(run.run_id)
    body = ports.artifacts.manifest(run.run_id)
    if body is None:
        raise PublicationError(run.run_id, f"{keys.manifest} is missing")
    try:
        manifest = read_document(Manifest, body).document
    except Unreadable as problem:
        raise PublicationError(run.run_id, f"{keys.manifest} cannot be used: {problem}") from problem
    problems = differences(manifest.objects, ports.artifacts.digests(run.run_id))
    problems += _adapter_problems(manifest, run)
    if problems:
        raise PublicationError(run.run_id, "; ".join(problems[:5]))
    run = ports.runs.update(run, published=True)
    audit(ports, run.run_id, "step", "publication verified", detail=f"{len(manifest.objects)} objects read back")
    register(ports, run, manifest)
    return Reply(decision="ready", shift=str(run.shift_seq))


def differences(promised: Mapping[str, FileDigest], stored: Mapping[str, FileDigest]) -> list[str]:
    """What is missing or has other bytes than the manifest says."""
    missing = [f"{name} is missing" for name in promised if name not in stored]
    changed = [
        f"{n} has other bytes than the manifest says" for n, d in promised.items() if n in stored and stored[n] != d
    ]
    return missing + changed


def _adapter_problems(manifest: Manifest, run: Run) -> list[str]:
    if run.verdict is not RunState.SUCCEEDED:
        return []
    problems = [f"adapter {name} is missing" for name in ("best", "final") if name not in manifest.adapters]
    for name in manifest.adapters:
        files = {k.rsplit("/", 1)[1] for k in manifest.objects if k.startswith(f"adapters/{name}/")}
        problems += [f"adapter {name} lacks {f}" for f in sorted(ADAPTER_FILES - files)]
    return problems


def provenance_of(run: Run, spec: RunSpec, model: str) -> Provenance:
    code = spec.task.code
    return Provenance(
        run_id=run.run_id,
        owner=run.owner,
        spec_sha256=run.spec_sha256,
        image=run.image,
        task_environment=spec.task.environment,
        task_code=f"git {code.sha}" if isinstance(code, GitCode) else f"{code.uri} sha256 {code.sha256}",
        model=model,
        skyrl_version=SKYRL_VERSION if spec.training.trainer == "skyrl" else None,
        controller_version=CONTROLLER_VERSION,
        created_at=run.created_at,
        parent=run.parent,
    )


def _objects(ports: Ports, run: Run) -> dict[str, FileDigest]:
    return {k: d for k, d in sorted(ports.artifacts.digests(run.run_id).items()) if k != MANIFEST}


def _manifest(
    ports: Ports, run: Run, spec: RunSpec, found: Results, attempts: Sequence[Attempt], adapters: dict[str, int]
) -> Manifest:
    now = ports.now()
    ceiling = known_ceiling(spec)
    return Manifest(
        run_id=run.run_id,
        state=(run.verdict or run.state).value,
        parent=run.parent,
        target=spec.target.success if spec.target is not None else None,
        ceiling=ceiling.share if ceiling is not None else None,
        attempts=[attempt_line(a, now) for a in attempts],
        baseline=found.baseline,
        final=found.final,
        best=found.best,
        holdout_baseline=found.holdout_baseline,
        holdout_final=found.holdout_final,
        holdout_best=found.holdout_best,
        curve=list(found.curve),
        adapters=adapters,
        gpu_hours=round(gpu_hours_of(attempts, now), 4),
        spend=spend_of(run, now),
        smaller=spec.recovery.on_out_of_memory if any(a.smaller for a in attempts) else None,
        objects={},
        at=now,
    )
