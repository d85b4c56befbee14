"""VisGym's mazes through SkyRL's kind of environment: both recipes, and what happens where VisGym is not installed.

VisGym itself is a fork of gymnasium that takes its name, so it cannot be installed beside ours. Where it is there, the tests at
the end play on it; everywhere else the adapter plays on a small environment with the same interface and the same mazes.
"""

from __future__ import annotations

import ast
import base64
import io
import re
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from training_job.errors import BadConfiguration
from training_job.tasks.mazes.env import MazeEnv
from training_job.tasks.mazes.maze import Action, make_maze, shortest_plan
from training_job.tasks.visgym.env import VisGymEnv
from training_job.tasks.visgym.oracle import solvable
from training_job.tasks.visgym.reply import WORDS, read_tuple, read_word

IS_VISGYM = hasattr(gymnasium, "VLMEnvMixin")
real = pytest.mark.skipif(not IS_VISGYM, reason="gymnasium is the original here, not VisGym's fork")

WORD_OF = {0: "right", 1: "up", 2: "left", 3: "down", 4: "stop"}


class Fake(gymnasium.Env[Any, Any]):
    """VisGym's interface over our own maze: actions as written tuples, a prompt, and a picture of 225 pixels."""

    def __init__(self) -> None:
        self._maze = MazeEnv()

    def get_prompt(self) -> str:
        return "You are navigating a 9x9 maze."

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self._maze.reset(seed=seed)

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert isinstance(action, str), "VisGym reads the tuple itself"
        try:
            return self._maze.step(ast.literal_eval(action))
        except (ValueError, TypeError):
            return self._maze.render(), 0.0, False, False, {"env_feedback": "The action is not valid."}

    def render(self) -> Any:
        return np.asarray(self._maze.render()).repeat(8, axis=0).repeat(8, axis=1)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """VisGym, or what stands in for it."""
    if IS_VISGYM:
        yield
        return
    monkeypatch.setattr(gymnasium, "VLMEnvMixin", object, raising=False)
    gymnasium.register(id="maze_2d/easy", entry_point=Fake, disable_env_checker=True)
    yield
    del gymnasium.registry["maze_2d/easy"]


def env(recipe: str = "sft", seed: int = 0, max_turns: int = 18, **config: Any) -> VisGymEnv:
    return VisGymEnv({"recipe": recipe} | config, {"seed": seed, "max_turns": max_turns})


def said(action: Action, recipe: str) -> str:
    if recipe == "instruct":
        return f"I see a way. <action>{WORD_OF[int(action)]}</action>"
    tuple_ = WORDS[WORD_OF[int(action)]]
    return f"<observation>o</observation><justification>j</justification><action>{tuple_}</action>"


def played(one: VisGymEnv, replies: list[str]) -> list[dict[str, Any]]:
    one.init([])
    found = []
    for reply in replies:
        found.append(one.step(reply))
        if found[-1]["done"]:
            break
    return found


def picture(message: dict[str, Any]) -> Any:
    url = message["content"][1]["image_url"]["url"]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/png;base64,")))))


@pytest.mark.parametrize(
    ("recipe", "pays", "asks"), [("sft", 1.0, "Python tuple"), ("instruct", 1.0, "<action>ACTION</action>")]
)
def test_the_shortest_way_solves_a_maze_in_either_recipe_and_only_its_end_pays(
    here: None, recipe: str, pays: float, asks: str
) -> None:
    one = env(recipe)
    [first], _ = one.init([])
    assert first["role"] == "user" and "9x9 maze" in first["content"][0]["text"] and asks in first["content"][0]["text"]
    assert picture(first).shape[2] == 3
    turns = played(one, [said(action, recipe) for action in shortest_plan(make_maze(0))])
    assert [turn["reward"] for turn in turns[:-1]] == [0.0] * (len(turns) - 1)
    assert (turns[-1]["reward"], turns[-1]["done"], turns[-1]["observations"]) == (pytest.approx(pays), True, [])
    assert turns[-1]["metadata"]["terminated"] and not turns[-1]["metadata"]["truncated"]
    assert one.get_metrics()["wasted_turns"] == 0


def test_each_turn_shows_the_maze_anew(here: None) -> None:
    one = env()
    [first], _ = one.init([])
    plan = shortest_plan(make_maze(0))
    [after] = one.step(said(plan[0], "sft"))["observations"]
    assert (picture(first) != picture(after)).any()


@pytest.mark.parametrize("recipe", ["sft", "instruct"])
def test_stopping_elsewhere_pays_no_task_and_in_the_sft_recipe_only_its_format(here: None, recipe: str) -> None:
    [turn] = played(env(recipe), [said(Action.STOP, recipe)])
    assert turn["done"] and turn["reward"] == (pytest.approx(0.2) if recipe == "sft" else 0.0)


@pytest.mark.parametrize("recipe", ["sft", "instruct"])
def test_a_reply_that_cannot_be_read_costs_its_turn_and_is_answered_with_how_to_answer(here: None, recipe: str) -> None:
    turns = played(env(recipe, max_turns=2), ["I do not know.", "Nor now."])
    assert [turn["done"] for turn in turns] == [False, True]
    assert "No action could be read" in turns[0]["observations"][0]["content"][0]["text"]
    assert [turn["reward"] for turn in turns] == [0.0, 0.0]
    assert turns[1]["metadata"]["truncated"]


def test_a_share_of_well_formed_turns_is_paid_as_a_share(here: None) -> None:
    bare = "('move', 0)"
    turns = played(env(max_turns=2), [bare, said(Action.RIGHT, "sft")])
    assert turns[-1]["reward"] == pytest.approx(0.2 * 0.5)


@pytest.mark.parametrize(
    ("config", "extras", "why"),
    [
        ({"recipe": "scratch"}, {}, r"task\.config\.recipe: scratch is not one of sft, instruct"),
        ({"env_id": "maze_2d/endless"}, {}, r"task\.config\.env_id: VisGym has no environment maze_2d/endless"),
    ],
)
def test_a_config_that_cannot_work_is_named_by_field(
    here: None, config: dict[str, Any], extras: dict[str, Any], why: str
) -> None:
    with pytest.raises(BadConfiguration, match=why):
        VisGymEnv(config, {"seed": 0, "max_turns": 5} | extras)


@pytest.mark.skipif(IS_VISGYM, reason="VisGym is here")
def test_without_visgym_the_run_is_refused_with_what_to_do() -> None:
    with pytest.raises(BadConfiguration, match=r"task\.environment: VisGym is not in this image .* is the original"):
        env()


# Replies


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<action>('move', 2)</action>", "('move', 2)"),
        ('("stop", "stop")', '("stop", "stop")'),
        ("(move, 1)", "('move', 1)"),
        ("first (see above), then ('mark', (0.5, 0.5))", "('mark', (0.5, 0.5))"),
        ("('swap', ((0, 0), (1, 1))) and ('move', 0)", "('swap', ((0, 0), (1, 1)))"),
        ("('say', 'a ) in quotes')", "('say', 'a ) in quotes')"),
        ("('move', 0", None),
        ("('move', 0, 1)", None),
        ("('move', __import__('os'))", None),
        ("move right", None),
    ],
)
def test_the_first_tuple_of_a_name_and_a_value_is_the_action(text: str, action: str | None) -> None:
    assert read_tuple(text).action == action


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<action>left</action>", "('move', 2)"),
        ("<action>left</action>, no: <ACTION> Stop </ACTION>", "('stop', 'stop')"),
        ("<action>left</action> <action>jump</action>", None),
        ("left", None),
    ],
)
def test_the_last_word_in_action_tags_is_the_action(text: str, action: str | None) -> None:
    assert read_word(text).action == action


@given(st.text(alphabet="()'\",\\ movestp0123<>/action[]{}", max_size=200))
def test_whatever_a_model_writes_is_an_action_that_can_be_read_or_none(text: str) -> None:
    action = read_tuple(text).action
    assert action is None or len(ast.literal_eval(action)) == 2
    assert read_word(text).action in {None, *WORDS.values()}


# The ceiling


@pytest.mark.parametrize(("turns", "solved"), [(12, 0), (13, 50), (15, 50), (16, 50), (17, 64), (20, 64)])
def test_of_the_64_fixed_mazes_50_can_be_solved_in_15_turns_and_all_in_17(turns: int, solved: int) -> None:
    assert sum(solvable({"seed": seed}, turns, {}) for seed in range(64)) == solved


def test_the_oracle_knows_no_other_environment() -> None:
    with pytest.raises(BadConfiguration, match=r"task\.oracle: this oracle knows maze_2d/easy only"):
        solvable({"seed": 0}, 20, {"env_id": "maze_2d/hard"})


# VisGym itself


@real
@pytest.mark.parametrize("recipe", ["sft", "instruct"])
def test_on_visgym_itself_the_oracle_solves_what_it_says_and_no_more(recipe: str) -> None:
    solved = 0
    for seed in range(64):
        turns = played(env(recipe, seed, 15), [said(action, recipe) for action in shortest_plan(make_maze(seed))])
        solved += turns[-1]["reward"] >= (0.8 if recipe == "sft" else 1.0)
    assert solved == 50


@real
def test_visgyms_mazes_are_ours_seed_by_seed() -> None:
    for seed in (*range(64), *range(500_000, 500_020)):
        theirs = env(seed=seed).env
        theirs.reset(seed=seed)
        state, ours = theirs.get_init_state(), make_maze(seed)
        ways = {(r, c) for r, row in enumerate(state["maze_map"]) for c, wall in enumerate(row) if not wall}
        assert (ways, tuple(state["agent_location"]), tuple(state["target_location"])) == (
            set(ours.open_cells),
            ours.start,
            ours.target,
        )


@real
def test_visgyms_prompt_names_the_actions_that_are_read() -> None:
    [first], _ = env().init([])
    assert set(re.findall(r"\('move', \d\)", first["content"][0]["text"])) == {f"('move', {d})" for d in range(4)}
