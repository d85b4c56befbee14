"""The maze task against the facts of VisGym's maze_2d/easy, and against whatever text a model may write."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from training_job.policies.maze import _pixels
from training_job.tasks.mazes import trace
from training_job.tasks.mazes.env import MazeEnv, MazeTextEnv
from training_job.tasks.mazes.maze import MOVES, Action, make_maze, shortest_plan
from training_job.tasks.mazes.oracle import solvable, turns_needed
from training_job.tasks.mazes.picture import draw
from training_job.tasks.mazes.reply import read_reply, write_reply

LONG = {1, 4, 6, 8, 14, 17, 20, 23, 25, 29, 34, 36, 59, 62}


def _env(seed: int, max_turns: int = 20) -> MazeTextEnv:
    env = MazeTextEnv({"recipe": "sft"}, {"seed": seed, "max_turns": max_turns})
    env.init([])
    return env


def _play(env: MazeTextEnv, texts: list[str]) -> list[dict[str, object]]:
    steps = []
    for text in texts:
        steps.append(env.step(text))
        if steps[-1]["done"]:
            break
    return steps


def test_the_64_fixed_mazes_need_the_turns_that_visgym_needs() -> None:
    turns = {seed: turns_needed(seed) for seed in range(64)}
    assert {seed for seed, needed in turns.items() if needed == 17} == LONG
    assert {seed for seed, needed in turns.items() if needed == 13} == set(range(64)) - LONG


@pytest.mark.parametrize(("max_turns", "ceiling"), [(12, 0), (13, 50), (15, 50), (16, 50), (17, 64), (20, 64)])
def test_the_oracle_says_how_many_fixed_mazes_can_be_solved(max_turns: int, ceiling: int) -> None:
    assert sum(solvable({"seed": seed}, max_turns, {}) for seed in range(64)) == ceiling


@given(st.integers(0, 2**31 - 1))
def test_every_maze_is_a_tree_of_sixteen_rooms_from_corner_to_opposite_corner(seed: int) -> None:
    maze = make_maze(seed)
    assert len(maze.open_cells) == 16 + 15
    assert {maze.start, maze.target} in ({(1, 1), (7, 7)}, {(1, 7), (7, 1)})
    assert make_maze(seed) == maze


@given(st.integers(0, 10_000))
def test_the_oracles_plan_earns_everything_and_ends_the_episode(seed: int) -> None:
    plan = shortest_plan(make_maze(seed))
    steps = _play(_env(seed, len(plan)), [write_reply(action) for action in plan])
    assert [step["done"] for step in steps] == [False] * (len(plan) - 1) + [True]
    assert sum(step["reward"] for step in steps) == pytest.approx(1.0)
    assert steps[-1]["metadata"]["terminated"] and steps[-1]["observations"] == []


def test_standing_on_the_target_without_stop_earns_the_format_only() -> None:
    plan = shortest_plan(make_maze(0))
    steps = _play(_env(0, len(plan) - 1), [write_reply(action) for action in plan])
    assert steps[-1]["done"] and not steps[-1]["metadata"]["terminated"]
    assert sum(step["reward"] for step in steps) == pytest.approx(0.2)


def test_stop_elsewhere_ends_the_episode_unsolved() -> None:
    steps = _play(_env(0), [write_reply(Action.STOP)])
    assert steps[0]["done"] and steps[0]["reward"] == pytest.approx(0.2)


@given(st.text(max_size=300))
def test_any_text_is_a_turn_and_never_a_crash(text: str) -> None:
    env = _env(3, max_turns=2)
    first = env.step(text)
    assert env.turns == 1
    if read_reply(text).action is None:
        assert not first["done"] and first["reward"] == 0.0
        assert env.env.agent == make_maze(3).start
        assert "respond with exactly one action" in first["observations"][0]["content"][0]["text"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "go right",
        "<action>('move', 4)</action>",
        "<action>('move', -1)</action>",
        "<action>('move', True)</action>",
        "<action>('fly', 0)</action>",
        "<action>('stop', 0)</action>",
        "<action>(move, 0)</action>",
        "<action>__import__('os').system('true')</action>",
        "(" * 10_000,
        "('move'," * 3_000,
    ],
)
def test_malformed_replies_waste_their_turn_and_say_why(text: str) -> None:
    reply = read_reply(text)
    assert reply.action is None
    assert "Please respond with exactly one action" in reply.problem


def test_a_tuple_without_tags_acts_but_is_not_well_formed() -> None:
    assert read_reply("I go ('move', 2) now").action is Action.LEFT
    assert not read_reply("I go ('move', 2) now").well_formed
    empty_tag = "<observation> </observation><justification>x</justification><action>('move', 2)</action>"
    assert not read_reply(empty_tag).well_formed


@pytest.mark.parametrize("action", list(Action))
def test_what_the_policies_say_is_read_as_what_they_mean(action: Action) -> None:
    reply = read_reply(write_reply(action))
    assert (reply.action, reply.well_formed, reply.problem) == (action, True, "")


def test_the_message_carries_the_picture_of_the_maze_as_it_is() -> None:
    env = _env(7)
    move = shortest_plan(make_maze(7))[0]
    content = env.step(write_reply(move))["observations"][0]["content"]
    there = make_maze(7).moved(make_maze(7).start, move)
    assert content[0]["type"] == "text"
    assert _pixels(content[1]["image_url"]["url"], 27) == draw(make_maze(7), there).tobytes()
    assert there != make_maze(7).start


def test_the_gymnasium_environment_takes_visgyms_tuples_and_refuses_others() -> None:
    env = MazeEnv()
    image, _ = env.reset(seed=5)
    assert env.observation_space.contains(image)
    for action in shortest_plan(make_maze(5))[:-1]:
        _, reward, terminated, truncated, _ = env.step(("move", int(action)))
        assert (reward, terminated, truncated) == (0.0, False, False)
    assert env.step(("stop", "stop"))[1:4] == (1.0, True, False)
    for wrong in (("move", 4), ("move", True), ("stop", 1), ("jump", 0)):
        with pytest.raises(ValueError, match="not an action"):
            env.step(wrong)


def test_walls_hold_the_agent() -> None:
    maze = make_maze(0)
    blocked = next(action for action in MOVES if maze.moved(maze.start, action) == maze.start)
    assert "wall" in _env(0).step(write_reply(blocked))["metadata"]["env_feedback"]


def test_a_trace_is_a_png_with_a_frame_for_each_turn() -> None:
    replies = [write_reply(action) for action in shortest_plan(make_maze(0))]
    picture = Image.open(io.BytesIO(trace.render({"item": {"seed": 0}, "max_turns": 20, "replies": replies})))
    picture.load()
    assert picture.size == (4 * (3 + 5 * 30), 4 * (3 + 3 * 30))
    blue = (np.asarray(picture) == (0, 0, 255)).all(axis=-1).sum() // 16
    assert blue == len(replies) + 1
