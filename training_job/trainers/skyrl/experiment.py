"""SkyRL's experiment with our trainer in it, run in the job's own process: that one is pinned to the head, whose loss
nothing survives anyway, while SkyRL's own entrypoint task may land on any node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skyrl.train.dataset import PromptDataset
from skyrl.train.entrypoints.main_base import BasePPOExp

from training_job.trackers import Tracked
from training_job.trainers.skyrl.hooks import HookedTrainer
from training_job.trainers.skyrl.results import Results
from training_job.trainers.skyrl.targets import refuse_adapted_tower
from training_job.trainers.skyrl.tracking import JobTracker

NEVER = -100.0
"""The lowest logit bias that vLLM takes: a token with it is not sampled."""


class Experiment(BasePPOExp):  # type: ignore[misc]  # its base is untyped
    """Differs from its base in the trainer's class, and in what is said in each method."""

    def __init__(
        self, cfg: Any, results: Results, holdout: Path | None, tracked: Tracked, begin: Path | None = None
    ) -> None:
        """``begin``: the folder of the adapter that step 0 begins with; none: a fresh one."""
        self._results, self._holdout, self._tracked, self._begin = results, holdout, tracked, begin
        refuse_adapted_tower(cfg)  # before the GPUs are asked for
        super().__init__(cfg)
        if cfg.generator.vision_language_generator:
            forbid_special_tokens(cfg, self.tokenizer)

    def set_up(self) -> Any:
        """Engines, models and trainer, ready to train."""
        return self._setup_trainer()

    def get_train_dataset(self) -> Any:
        return self._dataset(self.cfg.data.train_data)

    def get_eval_dataset(self) -> Any:
        return self._dataset(self.cfg.data.val_data)

    def _dataset(self, files: list[str]) -> Any:
        """Read in this process: eight spawned ones cost about 10 s a file."""
        return PromptDataset(
            datasets=files,
            tokenizer=self.tokenizer,
            max_prompt_length=self.cfg.trainer.max_prompt_length,
            num_workers=1,
        )

    def get_tracker(self) -> Any:
        return JobTracker(self._tracked, self.cfg)

    def get_inference_client(self) -> Any:
        client = super().get_inference_client()
        drop_end_of_turn(client, self.tokenizer)
        return client

    def get_trainer(self, **given: Any) -> Any:
        holdout = self._dataset([str(self._holdout)]) if self._holdout is not None else None
        return HookedTrainer(self._results, holdout, self._begin, **given)


def forbid_special_tokens(cfg: Any, tokenizer: Any) -> None:
    """Keep the policy from writing the chat template's and the pictures' own tokens; only the end of a turn may be sampled.

    SkyRL 0.3.0 renders a conversation anew for each turn from its text: a reply with an image token in it takes a picture
    away from a later place, and training then dies of "Image features and image tokens do not match"."""
    special = sorted(i for i, token in tokenizer.added_tokens_decoder.items() if token.special)
    bias = {str(i): NEVER for i in special if i != tokenizer.eos_token_id}
    for params in (cfg.generator.sampling_params, cfg.generator.eval_sampling_params):
        params.additional_kwargs = {**(params.additional_kwargs or {}), "logit_bias": bias}


def drop_end_of_turn(client: Any, tokenizer: Any) -> None:
    """Leave the end-of-turn token out of a reply's text.

    SkyRL 0.3.0 decodes a reply with it and puts the text into the conversation, where the chat template writes the token
    once more: each later turn would be rendered with it twice, unlike anything that the model was trained on.
    """

    async def detokenize(token_ids: list[list[int]]) -> list[str]:
        texts: list[str] = tokenizer.batch_decode([without_end(ids, tokenizer.eos_token_id) for ids in token_ids])
        return texts

    client.detokenize = detokenize


def without_end(ids: Sequence[int], end: int | None) -> list[int]:
    """Token ids without the end-of-turn token at their end."""
    return list(ids[:-1]) if len(ids) > 0 and ids[-1] == end else list(ids)
