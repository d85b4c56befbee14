"""What the controller and the training job agree on.

This package imports pydantic and the standard library only, so that it can be installed alone in the job's image
(``pip install ./functions`` installs nothing else). Every document that one side writes and the other reads has its
model here, and every such model carries ``version``.
"""

from nightshift.contract.base import CONTRACT_VERSION, Document, ExternalText, Model
from nightshift.contract.control import Control, ControlCommand
from nightshift.contract.evals import EvalRow, EvalSet, EvalSummary, wilson_interval
from nightshift.contract.job import (
    ExitCode,
    ExportRecord,
    FileDigest,
    GuardReport,
    Outcome,
    OutcomeCause,
    Phase,
    Progress,
)
from nightshift.contract.layout import RunKeys, SharedPaths, submission_id
from nightshift.contract.lineage import Ancestor, Lineage
from nightshift.contract.publication import AttemptLine, Manifest, Provenance
from nightshift.contract.spec import RunSpec, SeedData, Task, spec_digest

__all__ = [
    "CONTRACT_VERSION",
    "Ancestor",
    "AttemptLine",
    "Control",
    "ControlCommand",
    "Document",
    "EvalRow",
    "EvalSet",
    "EvalSummary",
    "ExitCode",
    "ExportRecord",
    "ExternalText",
    "FileDigest",
    "GuardReport",
    "Lineage",
    "Manifest",
    "Model",
    "Outcome",
    "OutcomeCause",
    "Phase",
    "Progress",
    "Provenance",
    "RunKeys",
    "RunSpec",
    "SeedData",
    "SharedPaths",
    "Task",
    "spec_digest",
    "submission_id",
    "wilson_interval",
]
