"""SkyRL's trainer with our eyes on it: phases, progress, verified saves, exports, evals, and the controller's requests.

Everything is done around SkyRL's own methods, which do the work unchanged; what is overridden exists in 0.3.0, and the
contract tests hold it to that.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils.callbacks import CallbackInput, TrainingCallback, TrainingControl

from nightshift.contract import Control, EvalSet, OutcomeCause, Phase
from training_job.job import Ended
from training_job.progress import wants_stop
from training_job.trainers.skyrl.beginning import beginning_with
from training_job.trainers.skyrl.results import Results, measured_in


class EndTraining(Exception):
    """Leaves SkyRL's loop at a point where everything of the step is saved. Not an error."""

    def __init__(self, ended: Ended) -> None:
        super().__init__(ended.message)
        self.ended = ended


class StepEnd(TrainingCallback):  # type: ignore[misc]  # its base is untyped
    """After each step: progress, and the controller's request for a checkpoint."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self._began = time.monotonic()
        self._first = True

    def on_train_start(self, trainer: Any, callback_input: CallbackInput, control: TrainingControl) -> None:
        self._results.started(callback_input.global_step, callback_input.total_steps)

    def on_step_start(self, trainer: Any, callback_input: CallbackInput, control: TrainingControl) -> None:
        self._began = time.monotonic()
        if self._first:
            self._first = False
            self._results.first_step_begins()
        self._results.enter(Phase.GENERATE)

    def on_step_end(self, trainer: Any, callback_input: CallbackInput, control: TrainingControl) -> None:
        seconds = time.monotonic() - self._began
        rollouts = int(trainer.all_metrics.get("generate/batch_num_seq", 0))
        measured = measured_in(trainer.all_metrics, trainer.all_timings, rollouts)
        self._results.stepped(callback_input.global_step, seconds, measured)
        if self._results.pending() is not None:
            control.should_save = True


class HookedTrainer(RayPPOTrainer):  # type: ignore[misc]  # its base is untyped
    """``results`` carries everything that leaves the trainer."""

    eval_dataloader: Any
    global_step: int

    def __init__(self, results: Results, holdout_dataset: Any | None, begin: Path | None = None, **given: Any) -> None:
        super().__init__(**given)
        self._results, self._begin = results, begin
        self._saved_step = -1
        self._exported_step = -1
        self._holdout_dataset = holdout_dataset
        self.add_callback(StepEnd(results))

    # models -----------------------------------------------------------------------------------------------------

    def build_models(self, PolicyWorker: Any, CriticWorker: Any, RefWorker: Any) -> None:
        policy = PolicyWorker if self._begin is None else beginning_with(self._begin)
        super().build_models(policy, CriticWorker, RefWorker)

    # phases -----------------------------------------------------------------------------------------------------

    def train_critic_and_policy(self, data: Any) -> Any:
        self._results.enter(Phase.TRAIN)
        return super().train_critic_and_policy(data)

    # saves ------------------------------------------------------------------------------------------------------

    def save_checkpoints(self) -> str:
        """A step counts as saved once its files were looked at again. A request of the controller is carried out here,
        where the step is complete but for its eval."""
        self._results.enter(Phase.CHECKPOINT)
        with self._results.spending("save"):
            self._results.saving(self.global_step)
            folder: str = super().save_checkpoints()
            self._results.saved(self.global_step)
        self._saved_step = self.global_step
        control = self._results.pending()
        if control is not None:
            self._carry_out(control)
        return folder

    def load_checkpoints(self) -> tuple[int, str]:
        try:
            found: tuple[int, str] = super().load_checkpoints()
        except Exception as error:
            why = self._results.not_loaded(error)
            if why is error:
                raise
            raise why from error
        return found

    def _carry_out(self, control: Control) -> None:
        if wants_stop(control):
            self.save_models()
        ended = self._results.carried_out(control, self.global_step)
        if ended is not None:
            raise EndTraining(ended)

    def save_models(self) -> None:
        if self._exported_step == self.global_step:
            return
        self._results.enter(Phase.EXPORT)
        with self._results.spending("save"):
            super().save_models()
            self._results.exported(self.global_step)
        self._exported_step = self.global_step

    # evals ------------------------------------------------------------------------------------------------------

    async def eval(self, vllm_metrics_scraper: Any = None) -> dict[str, float]:
        """SkyRL evaluates before it trains, also when it resumes: what an earlier attempt has published is not played
        again, except at the last step, whose evidence must be this attempt's own."""
        last = self.global_step >= self._results.total_steps
        metrics: dict[str, float] = {}
        if last or not self._results.has_eval(self.global_step):
            self._results.enter(Phase.EVAL)
            with self._results.spending("eval"):
                metrics = await super().eval(vllm_metrics_scraper=vllm_metrics_scraper)
                self._results.evaluated(self.global_step, EvalSet.FIXED)
            if self._holdout_dataset is not None and (last or self.global_step == 0):
                await self._eval_holdout()
        early = self._results.ends_early(self.global_step)
        if early is not None and not last:
            self.all_metrics.update(metrics)
            await self._complete()
            await self._confirm_best()
            raise EndTraining(early)
        if last:
            await self._confirm_best()
        if last and self._results.resumed_step >= self._results.total_steps:
            # Only the proof was missing: SkyRL's loop would train one step more.
            await self._engines_sleep()
            self.save_models()
            raise EndTraining(Ended(OutcomeCause.FINISHED, f"all {self._results.total_steps} steps were done before"))
        return metrics

    async def _complete(self) -> None:
        """What an end at this step needs beside its eval."""
        await self._engines_sleep()
        if self._saved_step != self.global_step:
            self.save_checkpoints()
        self.save_models()
        if self._holdout_dataset is not None:
            await self.dispatch.save_weights_for_sampler()  # saving has moved the weights off the engines
            await self._eval_holdout()

    async def _engines_sleep(self) -> None:
        """As SkyRL's loop does before it saves: engines and policy do not fit on a GPU at once."""
        if self.colocate_all:
            await self.inference_engine_client.sleep()

    async def _confirm_best(self) -> None:
        """The best adapter on the hold-out, once, where it is not the last one: it is loaded over the engines' in the way in
        which SkyRL brings them each step's. Nothing is trained or played after it. Where it fails the run is no worse:
        everything else is proven."""
        if self._holdout_dataset is None:
            return
        step = self.global_step
        try:
            best = self._results.to_confirm(step)
            if best is not None:
                self.global_step, folder = best  # SkyRL names its dump after it
                await self._load_into_engines(folder)
                await self._eval_holdout()
        except Exception as error:  # noqa: BLE001 - see above
            self._results.say(f"the best adapter was not confirmed: {type(error).__name__}: {str(error)[:500]}")
        finally:
            self.global_step = step

    async def _load_into_engines(self, folder: Path) -> None:
        engines = self.inference_engine_client
        await engines.load_lora_adapter(self.generator.policy_model_name, str(folder))
        await engines.reset_prefix_cache(reset_running_requests=True)
        engines.increment_weight_version()

    async def _eval_holdout(self) -> None:
        from skyrl.train.utils.trainer_utils import build_dataloader

        fixed = self.eval_dataloader
        self.eval_dataloader = build_dataloader(self.cfg, self._holdout_dataset, is_train=False)
        try:
            await super().eval()
        finally:
            self.eval_dataloader = fixed
        self._results.evaluated(self.global_step, EvalSet.HOLDOUT)
