"""A verified success in the model registry. Nothing of it touches the run's own end."""

from __future__ import annotations

from nightshift.contract.layout import RunKeys
from nightshift.contract.publication import Manifest, Provenance
from nightshift.contract.reading import read_document
from nightshift.contract.spec import RunSpec
from nightshift.core.errors import bounded
from nightshift.core.registration import Registration, registration
from nightshift.core.run import Run
from nightshift.steps.common import audit
from nightshift.steps.ports import Ports, Registry

MOST_SECONDS = 20.0
"""What a registration may take of an invocation, the SDK's import included."""
LEAST_SECONDS = 5.0
"""With less it is not begun."""
KEPT_SECONDS = 15.0
"""Of the invocation's time, for what the step itself still writes."""


def register(ports: Ports, run: Run, manifest: Manifest) -> Run:
    """The best adapter as a model package, where the spec names a group: once for a run, however often this is repeated. Why
    it could not be is written to the record, for the last message, and to the trail."""
    spec = ports.artifacts.spec(run.run_id)
    if spec.publish is None:
        return run
    try:
        arn = _registered(ports, run, manifest, spec)
    except Exception as error:  # noqa: BLE001 - the run is published: whatever the registry or its SDK raises is told
        why = bounded(error, 500)
        audit(ports, run.run_id, "step", "model package not registered", detail=why)
        return ports.runs.update(run, model_package=None, registration_problem=why)
    if arn is None:
        return run
    audit(ports, run.run_id, "step", "model package registered", detail=arn)
    return ports.runs.update(run, model_package=arn, registration_problem="")


def _registered(ports: Ports, run: Run, manifest: Manifest, spec: RunSpec) -> str | None:
    """None where there is nothing to register."""
    body = ports.artifacts.read_small(RunKeys(run.run_id).provenance)
    wanted = registration(run, manifest, read_document(Provenance, body or b"").document, spec)
    if wanted is None:
        return None
    if ports.registry is None:
        raise RuntimeError("this function has no model registry")
    seconds = min(MOST_SECONDS, ports.remaining() - KEPT_SECONDS)
    if seconds < LEAST_SECONDS:
        raise RuntimeError("reading the publication back left no time for it")
    return _within(ports, ports.registry, wanted, seconds)


def _within(ports: Ports, registry: Registry, wanted: Registration, seconds: float) -> str:
    """The package's ARN. Raises what the registry raises, and RuntimeError where it has not answered by then."""
    made: list[str] = []
    failed: list[Exception] = []

    def ask() -> None:
        try:
            made.append(registry.register(wanted))
        except Exception as error:  # noqa: BLE001 - told by the one who waits
            failed.append(error)

    ports.together({"registration": ask}, seconds)
    if failed:
        raise failed[0]
    if not made:
        late = f"a package that it makes late is in group {wanted.group} all the same"
        raise RuntimeError(f"SageMaker did not answer within {seconds:.0f} s; {late}")
    return made[0]
