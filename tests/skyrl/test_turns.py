"""SkyRL's generator for pictures over several turns: what the policy is shown, with and without its own end of turn twice.

The generator, its client and the task's environment are the real ones; an HTTP server stands in for the engines' router, and
renders conversations with a chat template of Qwen's shape.
"""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import RemoteInferenceClient
from skyrl.train.generators.skyrl_vlm_generator import SkyRLVLMGymGenerator
from transformers import PreTrainedTokenizerFast

from tests.skyrl.rig import MemoryStore, Rig, said, tiny
from tests.skyrl.words import END, SPECIAL, tokenizer
from training_job.tasks.mazes.maze import make_maze, shortest_plan
from training_job.trainers.skyrl.config import ENVIRONMENT_ID
from training_job.trainers.skyrl.environment import register_environment
from training_job.trainers.skyrl.experiment import NEVER, drop_end_of_turn, forbid_special_tokens

SEED = 3


class Router:
    """Answers as vLLM does; the policy always knows the way."""

    def __init__(self, words: PreTrainedTokenizerFast) -> None:
        self.words, self.prompts = words, list[list[int]]()
        self.replies = [said(action) for action in shortest_plan(make_maze(SEED))]

    async def render(self, request: web.Request) -> web.Response:
        messages = (await request.json())["messages"]
        ids = self.words.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
        return web.json_response({"token_ids": ids})

    async def generate(self, request: web.Request) -> web.Response:
        self.prompts.append((await request.json())["token_ids"])
        reply = [*self.words.encode(self.replies[len(self.prompts) - 1]), self.words.eos_token_id]
        return web.json_response({"choices": [{"token_ids": reply, "finish_reason": "stop"}]})

    async def finish(self, request: web.Request) -> web.Response:
        return web.json_response({})


async def play(rig: Rig, words: PreTrainedTokenizerFast, dropped: bool) -> tuple[Router, Any]:
    """One episode; (the router, what SkyRL trains on)."""
    router, app = Router(words), web.Application()
    app.add_routes(
        [
            web.post("/v1/chat/completions/render", router.render),
            web.post("/inference/v1/generate", router.generate),
            web.post("/finish_session", router.finish),
        ]
    )
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    client = RemoteInferenceClient(proxy_url=url, server_urls=[url], data_parallel_size=1, tokenizer=words)
    if dropped:
        drop_end_of_turn(client, words)
    try:
        generator = SkyRLVLMGymGenerator(rig.cfg.generator, rig.cfg.environment.skyrl_gym, client, words)
        row = {"seed": SEED, "nightshift_item": f"seed:{SEED}"}
        trajectory = await generator.agent_loop([], ENVIRONMENT_ID, row, 512, 100_000)
    finally:
        if client._session is not None:
            await client._session.close()
        await runner.cleanup()
    return router, trajectory


def doubled(ids: list[int], end: int) -> int:
    return sum(one == two == end for one, two in itertools.pairwise(ids))


@pytest.fixture
def words() -> PreTrainedTokenizerFast:
    return tokenizer()


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    made = Rig(tiny(), tmp_path, MemoryStore())
    register_environment(made.prepared.plan)
    return made


def test_each_turn_is_shown_the_turns_before_it_exactly_as_they_were_generated(
    rig: Rig, words: PreTrainedTokenizerFast
) -> None:
    router, trajectory = asyncio.run(play(rig, words, dropped=True))
    assert len(router.prompts) == len(router.replies) > 3
    whole = trajectory.prompt_ids + trajectory.response_ids
    assert [doubled(ids, words.eos_token_id) for ids in (*router.prompts, whole)] == [0] * (len(router.prompts) + 1)
    for prompt in router.prompts:
        assert whole[: len(prompt)] == prompt, "what is trained on is not what the engine saw"
    trained = [token for token, kept in zip(trajectory.response_ids, trajectory.loss_mask, strict=True) if kept]
    assert trained == [token for reply in router.replies for token in (*words.encode(reply), words.eos_token_id)]
    assert sum(trajectory.reward) >= rig.spec.task.success.min_score


def test_skyrl_alone_shows_the_end_of_each_turn_twice(rig: Rig, words: PreTrainedTokenizerFast) -> None:
    """Where this fails, SkyRL has repaired it, and ``drop_end_of_turn`` can go."""
    router, _ = asyncio.run(play(rig, words, dropped=False))
    assert doubled(router.prompts[-1], words.eos_token_id) == len(router.prompts) - 1


def test_the_policy_may_write_no_token_of_the_template_or_of_pictures_but_the_end_of_its_turn(
    rig: Rig, words: PreTrainedTokenizerFast
) -> None:
    forbid_special_tokens(rig.cfg, words)
    for params in (rig.cfg.generator.sampling_params, rig.cfg.generator.eval_sampling_params):
        bias = params.additional_kwargs["logit_bias"]
        assert {words.convert_ids_to_tokens(int(one)) for one in bias} >= set(SPECIAL)
        assert str(words.convert_tokens_to_ids(END)) not in bias
        assert set(bias.values()) == {NEVER}
