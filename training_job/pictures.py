"""Pictures for people, drawn at the end: the curve over all attempts, and an episode or two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from nightshift.contract import EvalSet, EvalSummary, RunKeys
from training_job.curve import draw_curve
from training_job.evals import Episode, published_summaries
from training_job.job import Job
from training_job.plug import ceiling, load_object, open_items
from training_job.standing import resumed_steps


class HasEpisodes(Protocol):
    """A finished eval."""

    @property
    def summary(self) -> EvalSummary: ...

    @property
    def episodes(self) -> Sequence[Episode]: ...


def publish_pictures(job: Job, examined: Sequence[HasEpisodes]) -> None:
    """Queue curve.png and the traces of the last eval's first solved and first unsolved item.

    A picture that cannot be drawn is told in the log and costs the run nothing.
    """
    try:
        job.uploader.flush(30.0)  # the curve is drawn from what is published
        _publish_curve(job)
        for one in examined:
            if one.summary.eval_set is EvalSet.FIXED:
                _publish_traces(job, one.episodes)
    except Exception as error:  # noqa: BLE001 - renderers are the task's code
        job.say(f"a picture could not be drawn: {type(error).__name__}: {str(error)[:500]}")


def _publish_curve(job: Job) -> None:
    spec = job.spec
    items = open_items(spec.task.eval, "task.eval", job.paths, job.open_store)
    target = spec.target.success if spec.target else None
    summaries = published_summaries(job.store, spec.run_id)
    resumed = {n: step for n, step in resumed_steps(job).items() if step is not None}
    if job.attempt > 1:
        resumed[job.attempt] = job.reporter.current.resumed_step or 0
    content = draw_curve(spec.run_id, summaries, resumed, target, ceiling(spec, items))
    job.uploader.put(RunKeys(spec.run_id).curve_png, content)


def _publish_traces(job: Job, episodes: Sequence[Episode]) -> None:
    task = job.spec.task
    if task.trace_renderer is None:
        return
    render = load_object(task.trace_renderer, "task.trace_renderer")
    solved = [episode for episode in episodes if episode.score >= task.success.min_score]
    unsolved = [episode for episode in episodes if episode.score < task.success.min_score]
    for name, group in (("solved", solved), ("unsolved", unsolved)):
        for episode in group[:1]:
            trace = {"item": episode.row, "max_turns": job.spec.training.max_turns, "replies": list(episode.replies)}
            key = f"{RunKeys(job.spec.run_id).diagnostics(job.attempt)}trace-{name}.png"
            job.uploader.put(key, render(trace))
