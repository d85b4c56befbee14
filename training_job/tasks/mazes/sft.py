"""The supervised checkpoint that the demo starts from: ``python -m training_job.tasks.mazes.sft``.

Two stages, both from the oracle's labels on mazes that are neither in the fixed set nor in the hold-out:

1. ``learn_navigation``: oracle actions from every open cell, until the policy can find its way. It stands in for what
   a large base model already knows.
2. ``imitate_hesitant``: demonstrations that dither and are loath to stop (VisGym's own solver can pad its solutions
   with moves back and forth). The policy picks these habits up. Training ends when exactly ``target`` of the 64 fixed
   mazes are solved greedily within 20 turns: the deficit is designed in, and the stop point is chosen on the eval
   mazes.

GRPO then unlearns the habits. Everything is seeded; on one computer the script gives the same bytes each time.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from training_job.policies.nets import Net, new_net
from training_job.tasks.mazes.maze import GRID, MOVES, Action, Cell, Maze, best_actions, make_maze
from training_job.tasks.mazes.picture import CELL_PIXELS, Pixels, draw_agents, draw_backgrounds
from training_job.tasks.mazes.reply import write_reply

SHIPPED: Final = Path(__file__).resolve().parents[2] / "models" / "maze_sft"
"""Where the image has the checkpoint: without --out it is made again in place."""

FIXED_SEEDS: Final = range(64)
HOLDOUT_SEEDS: Final = range(500_000, 500_500)
NAVIGATION_SEEDS: Final = range(1_000, 7_000)
IMITATION_SEEDS: Final = range(1_000, 4_000)
TURNS: Final = 20


@dataclass(frozen=True)
class SftSettings:
    """Every number that shapes the checkpoint."""

    seed: int = 0
    batch_size: int = 256
    navigation_steps: int = 1_000
    navigation_lr: float = 3e-3
    imitation_lr: float = 5e-4
    imitation_min_steps: int = 100
    imitation_max_steps: int = 1_000
    hesitation: float = 0.35
    """Chance of a random legal move on the way."""
    reluctance: float = 0.55
    """Chance of walking off the target rather than stopping."""
    target: int = 28
    """Fixed mazes solved when training ends."""


def policy_config() -> dict[str, Any]:
    """config.json of the maze policy."""
    return {
        "model_type": "maze_policy",
        "channels": 48,
        "iterations": 10,
        "grid": GRID,
        "patch": CELL_PIXELS,
        "replies": [write_reply(action) for action in Action],
    }


@dataclass(frozen=True)
class Examples:
    """Pictures and their labels: ``owner`` (N) picks a background, ``agents`` (N, 2) the cell, ``actions`` (N)."""

    backgrounds: Pixels
    owner: NDArray[np.int64]
    agents: NDArray[np.int64]
    actions: NDArray[np.int64]

    def batch(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Pictures (B, side, side, 3), drawn on demand, and labels (B)."""
        images = draw_agents(self.backgrounds[self.owner[rows]], self.agents[rows])
        return torch.from_numpy(images), torch.from_numpy(self.actions[rows])


def _examples(mazes: Sequence[Maze], walks: Sequence[Sequence[tuple[Cell, Action]]]) -> Examples:
    owner = np.repeat(np.arange(len(mazes)), [len(walk) for walk in walks])
    agents = np.array([cell for walk in walks for cell, _ in walk], dtype=np.int64)
    actions = np.array([action for walk in walks for _, action in walk], dtype=np.int64)
    return Examples(draw_backgrounds(mazes), owner, agents, actions)


def hesitant_walk(maze: Maze, settings: SftSettings, rng: random.Random) -> Iterator[tuple[Cell, Action]]:
    """One demonstration that dithers and is loath to stop."""
    best, at = best_actions(maze), maze.start
    for _ in range(2 * TURNS):
        action = best[at]
        stray = settings.reluctance if action is Action.STOP else settings.hesitation
        if rng.random() < stray:
            action = rng.choice([move for move in MOVES if maze.moved(at, move) != at])
        yield at, action
        if action is Action.STOP:
            return
        at = maze.moved(at, action)


@torch.no_grad()
def greedy_solved(net: Net, mazes: Sequence[Maze], turns: int = TURNS) -> int:
    """How many mazes the most likely actions solve."""
    backgrounds = draw_backgrounds(mazes)
    agents = [maze.start for maze in mazes]
    live, solved = list(range(len(mazes))), 0
    for _ in range(turns):
        images = draw_agents(backgrounds[live], np.array([agents[i] for i in live], dtype=np.int64))
        chosen = [Action(int(choice)) for choice in net(torch.from_numpy(images)).argmax(dim=1)]
        solved += sum(a is Action.STOP and agents[i] == mazes[i].target for i, a in zip(live, chosen, strict=True))
        for i, action in zip(live, chosen, strict=True):
            agents[i] = mazes[i].moved(agents[i], action)
        live = [i for i, action in zip(live, chosen, strict=True) if action is not Action.STOP]
        if not live:
            break
    return solved


def unseen_mazes(seeds: range) -> list[Maze]:
    """The seeds' mazes, less those that happen to equal an evaluated one."""
    evaluated = {make_maze(seed) for seed in (*FIXED_SEEDS, *HOLDOUT_SEEDS)}
    return [maze for maze in map(make_maze, seeds) if maze not in evaluated]


def _fit(net: Net, optimizer: torch.optim.Optimizer, images: Tensor, actions: Tensor) -> float:
    loss = nn.functional.cross_entropy(net(images), actions)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # untyped there
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def learn_navigation(net: Net, settings: SftSettings) -> None:
    """Fit the oracle; pictures on the target are drawn 4 times as often, as they are rare."""
    mazes = unseen_mazes(NAVIGATION_SEEDS)
    examples = _examples(mazes, [sorted(best_actions(maze).items()) for maze in mazes])
    optimizer = torch.optim.AdamW(net.parameters(), lr=settings.navigation_lr)
    odds = np.where(examples.actions == Action.STOP, 4.0, 1.0)
    rng = np.random.default_rng([settings.seed, 1])
    for step in range(1, settings.navigation_steps + 1):
        done = step / settings.navigation_steps
        decay = 0.51 + 0.49 * math.cos(math.pi * done)
        optimizer.param_groups[0]["lr"] = settings.navigation_lr * min(1.0, step / 50) * decay
        loss = _fit(net, optimizer, *examples.batch(rng.choice(len(odds), settings.batch_size, p=odds / odds.sum())))
        if step % 100 == 0:
            print(f"navigation {step} loss {loss:.4f}", flush=True)


def imitate_hesitant(net: Net, settings: SftSettings) -> None:
    """Fit the hesitant demonstrations until exactly ``target`` fixed mazes are solved.

    Raises RuntimeError where that never happens within ``imitation_max_steps``.
    """
    mazes, fixed = unseen_mazes(IMITATION_SEEDS), [make_maze(seed) for seed in FIXED_SEEDS]
    dice = random.Random(settings.seed)
    examples = _examples(mazes, [list(hesitant_walk(maze, settings, dice)) for maze in mazes])
    optimizer = torch.optim.AdamW(net.parameters(), lr=settings.imitation_lr)
    rng = np.random.default_rng([settings.seed, 2])
    for step in range(1, settings.imitation_max_steps + 1):
        loss = _fit(net, optimizer, *examples.batch(rng.integers(len(examples.actions), size=settings.batch_size)))
        if step % 5 == 0:
            solved = greedy_solved(net, fixed)
            print(f"imitation {step} loss {loss:.4f} fixed set {solved}/{len(fixed)}", flush=True)
            if step >= settings.imitation_min_steps and solved == settings.target:
                return
    raise RuntimeError(f"never solved exactly {settings.target} of the fixed mazes")


def warm_start(settings: SftSettings) -> Net:
    """Both stages from fresh weights."""
    torch.manual_seed(settings.seed)
    net = new_net(policy_config())
    learn_navigation(net, settings)
    imitate_hesitant(net, settings)
    return net


def main() -> None:
    """Train and save."""
    from training_job.policies.pretrained import save_policy

    parser = argparse.ArgumentParser(description="Train and save the supervised checkpoint of the maze policy.")
    parser.add_argument("--out", type=Path, default=SHIPPED, help="folder of config.json and model.safetensors")
    parser.add_argument("--seed", type=int, default=SftSettings.seed)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    net = warm_start(SftSettings(seed=args.seed))
    save_policy(net, policy_config(), args.out)
    print(f"{sum(p.numel() for p in net.parameters())} parameters written to {args.out}")


if __name__ == "__main__":
    main()
