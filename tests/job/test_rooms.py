"""The task of the proofs on a GPU: the mazes with longer strides."""

from __future__ import annotations

from bench.gpu.rooms import RoomTextEnv, moved, solvable, turns_needed
from training_job.tasks.mazes.maze import Action, best_actions, make_maze
from training_job.tasks.mazes.reply import write_reply

FIXED = range(64)


def test_the_oracle_solves_each_fixed_maze_in_as_many_turns_as_are_said_to_be_needed():
    for seed in FIXED:
        env = RoomTextEnv(extras={"seed": seed, "max_turns": 12})
        env.init([])
        turn, done = 0, False
        while not done:
            turn, said = turn + 1, env.step(write_reply(best_actions(env.env.maze)[env.env.agent]))
            done = said["done"]
        assert (env.solved, said["reward"], turn) == (True, 1.0, turns_needed(seed))
    assert {turns_needed(seed) for seed in FIXED} == {7, 9}


def test_a_wall_between_two_rooms_keeps_the_agent_where_it_is_and_says_so():
    maze = make_maze(0)
    wall = next(
        a for a in (Action.RIGHT, Action.UP, Action.LEFT, Action.DOWN) if maze.moved(maze.start, a) == maze.start
    )
    env = RoomTextEnv(extras={"seed": 0, "max_turns": 12})
    env.init([])
    said = env.step(write_reply(wall))
    assert env.env.agent == moved(maze, maze.start, wall) == maze.start
    assert "wall" in said["metadata"]["env_feedback"] and not said["done"]


def test_the_ceiling_is_known():
    assert all(solvable({"seed": seed}, 9, {}) for seed in FIXED)
    assert 0 < sum(solvable({"seed": seed}, 7, {}) for seed in FIXED) < len(FIXED)
