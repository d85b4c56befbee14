"""The supervised start of the tiny Qwen3-VL: ``python bench/gpu/sft.py MODEL OUT --seconds N``.

Three stages. The vision tower learns the oracle's move from every cell of a picture at once: it stands in for what a large
model already sees. The language model learns to say the oracle's move where the agent is. Then, as in
``training_job/tasks/mazes/sft.py``, it learns from demonstrations that dither and are loath to stop, until a third to under a
half of other mazes is solved greedily. The deficit is designed in: GRPO has to unlearn these habits. Seeds 0 to 63, 10,000 to
20,000 and 500,000 to 500,500 are never shown.

A token of a picture is a cell, and all pictures have one size: the vision tower runs over all of a batch's pictures at once
instead of one by one. ``same_as_transformers`` holds tokens, pixels and logits to what the model's own classes make.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from transformers import AutoModelForImageTextToText, AutoProcessor

from bench.gpu.make_model import ACTIONS
from bench.gpu.rooms import PROMPT, moved
from training_job.tasks.mazes.maze import GRID, MOVES, Action, Cell, Maze, best_actions, make_maze
from training_job.tasks.mazes.picture import BLUE, draw, draw_agents, draw_backgrounds

TURNS = 12
MOVED, BLOCKED = "You moved.", "There is a wall: you did not move."
CELLS = GRID * GRID
TRAIN, OTHERS, FIXED = range(1_000_000, 1_030_000), range(3_000_000, 3_000_256), range(64)
WALL = -100
"""Label of a cell that cannot be entered: it counts for nothing."""
Turn = tuple[Cell, Action, str]
"""Where the agent is, what it says, and the text before the picture."""


class Words:
    """Token ids of the pieces of a conversation, and the positions of each piece's tokens (3, L) from 0."""

    def __init__(self, tokenizer: Any) -> None:
        ids = {text: tokenizer(text, add_special_tokens=False).input_ids for text in (PROMPT, MOVED, BLOCKED)}
        one = lambda text: tokenizer(text, add_special_tokens=False).input_ids  # noqa: E731
        self.image = one("<|image_pad|>")[0]
        self.end, self.pad = tokenizer.eos_token_id, tokenizer.pad_token_id
        vocabulary = tokenizer.get_vocab()
        self.reply = [next(i for word, i in vocabulary.items() if f"<action>{a}</action>" in word) for a in ACTIONS]
        before, after = one("<|im_start|> user"), one("<|vision_end|><|im_end|><|im_start|> assistant")
        start = one("<|vision_start|>")
        self.turn = {t: np.array(before + ids[t] + start + [self.image] * CELLS + after) for t in ids}
        self.place = {t: self._places(len(before + ids[t] + start), len(after)) for t in ids}

    @staticmethod
    def _places(head: int, tail: int) -> Any:
        row, column = np.divmod(np.arange(CELLS), GRID)
        picture = head + np.stack([np.zeros(CELLS, np.int64), row, column])
        rest = head + GRID + np.arange(tail)
        return np.concatenate([np.tile(np.arange(head), (3, 1)), picture, np.tile(rest, (3, 1))], axis=1)

    def conversation(self, turns: Sequence[Turn]) -> tuple[Any, Any, Any]:
        """ids (L), positions (3, L) and the places (T) of the tokens that come before a reply."""
        ids, places, asked, begin, length = [], [], [], 0, 0
        for _, action, text in turns:
            piece, place = self.turn[text], self.place[text]
            said = np.array([self.reply[action], self.end])
            last = place[:, -1:] + 1
            ids += [piece, said]
            places += [place + begin, np.concatenate([last, last + 1], axis=1) + begin]
            asked.append(length + len(piece) - 1)
            length += len(piece) + 2
            begin += int(last[0, 0]) + 2
        return np.concatenate(ids), np.concatenate(places, axis=1), np.array(asked)


def walk(
    maze: Maze, dice: random.Random, stray: float, reluctance: float, follow: bool
) -> tuple[list[Turn], list[int]]:
    """One demonstration and its labels: the oracle's action at each turn, or with ``follow`` what was done."""
    best, at, text = best_actions(maze), maze.start, PROMPT
    turns: list[Turn] = []
    labels: list[int] = []
    for _ in range(TURNS):
        done = best[at]
        if dice.random() < (reluctance if done is Action.STOP else stray):
            legal = [move for move in MOVES if moved(maze, at, move) != at]
            done = dice.choice(legal if follow or dice.random() < 0.8 else list(MOVES))
        turns.append((at, done, text))
        labels.append(int(done if follow else best[at]))
        if done is Action.STOP:
            break
        there = moved(maze, at, done)
        at, text = there, BLOCKED if there == at else MOVED
    return turns, labels


def stack(words: Words, episodes: Sequence[tuple[Maze, Sequence[Turn]]]) -> dict[str, Tensor]:
    """Padded to the longest; ``owner`` (N) and ``agents`` (N, 2) say what each picture shows."""
    made = [words.conversation(turns) for _, turns in episodes]
    longest = max(len(ids) for ids, _, _ in made)
    ids = np.full((len(made), longest), words.pad)
    places = np.zeros((4, len(made), longest), np.int64)
    places[0] = np.arange(longest)
    for row, (tokens, place, _) in enumerate(made):
        ids[row, : len(tokens)] = tokens
        places[1:, row, : len(tokens)] = place
    asked = np.concatenate([row * longest + where for row, (_, _, where) in enumerate(made)])
    agents = np.array([at for _, turns in episodes for at, _, _ in turns], dtype=np.int64)
    owner = np.repeat(np.arange(len(episodes)), [len(turns) for _, turns in episodes])
    pictures = draw_agents(draw_backgrounds([maze for maze, _ in episodes])[owner], agents)
    arrays = {"ids": ids, "places": places, "asked": asked, "pictures": pictures}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def known(seed: int) -> tuple[Maze, Any]:
    """A maze and its labels (CELLS): the oracle's move from each cell."""
    maze, labels = make_maze(seed), np.full((GRID, GRID), WALL)
    for cell, action in best_actions(maze).items():
        labels[cell] = int(action)
    return maze, labels.reshape(-1)


class Episodes(IterableDataset):  # type: ignore[type-arg]
    def __init__(
        self, words: Words, mazes: Sequence[Maze], size: int, stray: float, reluctance: float, follow: bool
    ) -> None:
        self.words, self.mazes, self.size, self.rule = words, mazes, size, (stray, reluctance, follow)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        info = torch.utils.data.get_worker_info()
        dice = random.Random(info.id if info else 0)
        while True:
            mazes = [dice.choice(self.mazes) for _ in range(self.size)]
            walks = [walk(maze, dice, *self.rule) for maze in mazes]
            batch = stack(self.words, [(maze, turns) for maze, (turns, _) in zip(mazes, walks, strict=True)])
            yield batch | {"labels": torch.tensor([one for _, labels in walks for one in labels])}


class Player:
    """The model, with its vision tower over whole batches."""

    def __init__(self, folder: Path, device: str) -> None:
        self.processor = AutoProcessor.from_pretrained(folder)
        self.words = Words(self.processor.tokenizer)
        self.net = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).to(device)
        self.device = device
        grid = torch.tensor([[1, 2 * GRID, 2 * GRID]], device=device)
        tower = self.net.model.visual
        self.patch = int(self.net.config.vision_config.patch_size)
        noted: dict[str, Any] = {}
        hook = tower.blocks[0].register_forward_pre_hook(
            lambda module, args, kwargs: noted.update(kwargs, x=args[0]), with_kwargs=True
        )
        blank = torch.zeros(4 * CELLS, 3 * 2 * self.patch**2, device=device)
        with torch.no_grad():
            tower(blank, grid_thw=grid)
            self.placed = noted["x"] - tower.patch_embed(
                blank
            )  # learned positions of a picture's patches: they stay as they are
        hook.remove()
        self.turned = noted["position_embeddings"]  # rotary angles (cos, sin), each (patches of a picture, head size)

    def pixels(self, pictures: Tensor) -> Tensor:
        """Patches (N * 4 * CELLS, values) of uint8 pictures (N, side, side, 3), as the processor makes them."""
        side = 2 * GRID * self.patch
        x = pictures.to(self.device).permute(0, 3, 1, 2).float()
        for size in ((x.shape[2], side), (side, side)):  # whole numbers after each direction, as torchvision has them
            x = F.interpolate(x, size=size, mode="bicubic", antialias=True).round().clamp(0, 255)
        x = (x / 255 - 0.5) / 0.5
        n, p = len(x), self.patch
        x = x[:, None].expand(n, 2, 3, side, side).reshape(n, 1, 2, 3, GRID, 2, p, GRID, 2, p)
        return x.permute(0, 1, 4, 7, 5, 8, 3, 2, 6, 9).reshape(n * 4 * CELLS, -1)

    def seen(self, pictures: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Visual tokens (N * CELLS, hidden), and those of the deeper layers."""
        tower = self.net.model.visual
        x = tower.patch_embed(self.pixels(pictures))
        n, per = len(pictures), 4 * CELLS
        x = (x.view(n, per, -1) + self.placed[None]).view(n * per, -1)
        deep = []
        for number, block in enumerate(tower.blocks):
            x = x + self._attend(block.attn, block.norm1(x), n)
            x = x + block.mlp(block.norm2(x))
            if number in tower.deepstack_visual_indexes:
                deep.append(tower.deepstack_merger_list[tower.deepstack_visual_indexes.index(number)](x))
        return tower.merger(x), deep

    def _attend(self, attention: Any, x: Tensor, n: int) -> Tensor:
        q, k, v = attention.qkv(x).view(n, 4 * CELLS, 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4)
        cos, sin = (one.to(q.dtype) for one in self.turned)
        half = lambda t: torch.cat((-t[..., t.shape[-1] // 2 :], t[..., : t.shape[-1] // 2]), dim=-1)  # noqa: E731
        q, k = q * cos + half(q) * sin, k * cos + half(k) * sin
        out = F.scaled_dot_product_attention(q, k, v)
        projected: Tensor = attention.proj(out.transpose(1, 2).reshape(n * 4 * CELLS, -1))
        return projected

    def logits(self, batch: dict[str, Tensor], ends: bool = False) -> Tensor:
        """(T, vocabulary) where replies begin; with ``ends`` (2 T, vocabulary), those after the replies behind them."""
        ids, places = batch["ids"].to(self.device), batch["places"].to(self.device)
        tokens, deep = self.seen(batch["pictures"])
        language = self.net.model.language_model
        embedded = language.embed_tokens(ids)
        where = ids == self.words.image
        embedded = embedded.masked_scatter(where[..., None], tokens.to(embedded.dtype))
        hidden = language(
            inputs_embeds=embedded, position_ids=places, attention_mask=None, use_cache=False,
            visual_pos_masks=where, deepstack_visual_embeds=deep,
        ).last_hidden_state  # fmt: skip
        asked = batch["asked"].to(self.device)
        rows = torch.cat([asked, asked + 1]) if ends else asked
        made: Tensor = self.net.lm_head(hidden.flatten(0, 1)[rows]).float()
        return made

    @torch.no_grad()
    def solved(self, mazes: Sequence[Maze]) -> int:
        """How many mazes the most likely replies solve within TURNS."""
        at, text = [maze.start for maze in mazes], [PROMPT] * len(mazes)
        past: list[list[Turn]] = [[] for _ in mazes]
        live, won = list(range(len(mazes))), 0
        for _ in range(TURNS):
            asked = [(mazes[i], [*past[i], (at[i], Action.STOP, text[i])]) for i in live]
            batch = stack(self.words, asked)
            ends = torch.tensor([len(turns) for _, turns in asked]).cumsum(0) - 1
            with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
                scores = self.logits(batch | {"asked": batch["asked"][ends]})
            for i, choice in zip(list(live), scores[:, self.words.reply].argmax(dim=1).tolist(), strict=True):
                action, there = Action(choice), moved(mazes[i], at[i], Action(choice))
                past[i].append((at[i], action, text[i]))
                if action is Action.STOP:
                    won += at[i] == mazes[i].target
                    live.remove(i)
                text[i] = BLOCKED if there == at[i] else MOVED
                at[i] = there
            if not live:
                break
        return won


def same_as_transformers(player: Player) -> float:
    """Raises AssertionError where our tokens, pixels or logits are not those of the model's classes; the logits' distance."""
    from PIL import Image

    maze = make_maze(1_000_000)
    turns, _ = walk(maze, random.Random(3), 0.5, 0.5, False)
    messages: list[dict[str, Any]] = []
    for at, action, text in turns:
        picture = {"type": "image", "image": Image.fromarray(draw(maze, at))}
        messages.append({"role": "user", "content": [{"type": "text", "text": text}, picture]})
        reply = player.processor.tokenizer.decode([player.words.reply[action]])
        messages.append({"role": "assistant", "content": reply})
    text = player.processor.apply_chat_template(messages, tokenize=False)
    images = [part["image"] for m in messages if m["role"] == "user" for part in m["content"] if "image" in part]
    real = player.processor(text=[text], images=images, return_tensors="pt").to(player.device)
    batch = stack(player.words, [(maze, turns)])
    assert real["input_ids"][0].tolist() == batch["ids"][0].tolist(), "tokens differ"
    far = (real["pixel_values"] - player.pixels(batch["pictures"])).abs().max().item()
    assert far < 0.02, f"pixels differ by {far}"
    with torch.no_grad():
        wanted = player.net(**real).logits[0].float()[batch["asked"].to(player.device)]
        got = player.logits(batch)
    return float((wanted - got).abs().max())


def see(player: Player, mazes: Sequence[Maze], labels: Any, seconds: float, args: Any) -> float:
    """Fit the vision tower; the share of cells with the oracle's move on the last 2,000 mazes, which are not shown."""
    device, net = player.device, player.net
    backgrounds = torch.from_numpy(draw_backgrounds(mazes)).to(device)
    wanted = torch.from_numpy(np.stack(labels)).to(device)
    walks = (wanted != WALL).float()
    head = torch.nn.Linear(net.config.vision_config.out_hidden_size, len(ACTIONS), device=device)
    held = min(2_000, len(mazes) // 4)
    middle = backgrounds.shape[1] // GRID // 2

    def scores(rows: Tensor) -> Tensor:
        cell = torch.multinomial(walks[rows], 1)[:, 0]
        row, column = cell // GRID, cell % GRID
        pictures = backgrounds[rows].clone()
        side = backgrounds.shape[1] // GRID
        at = torch.arange(len(rows), device=device)
        pictures[at, row * side + middle, column * side + middle] = torch.tensor(BLUE, dtype=torch.uint8, device=device)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            made: Tensor = head(player.seen(pictures)[0]).float()
        return made

    own = [*net.model.visual.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(own, lr=args.sight_rate, weight_decay=0.01, betas=(0.9, 0.98), fused=device == "cuda")
    began, step, right = time.monotonic(), 0, 0.0
    while (gone := (time.monotonic() - began) / seconds) < 1:
        step += 1
        optimizer.param_groups[0]["lr"] = args.sight_rate * min(1.0, step / 200) * max(0.02, 1 - gone)
        rows = torch.randint(0, len(mazes) - held, (args.pictures,), device=device)
        loss = F.cross_entropy(scores(rows), wanted[rows].flatten(), ignore_index=WALL)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(own, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 250 == 0 or step == 1:
            with torch.no_grad():
                rows = torch.arange(len(mazes) - held, len(mazes), device=device)
                good = torch.cat([scores(part).argmax(dim=1) for part in rows.split(500)]) == wanted[rows].flatten()
                right = float(good[wanted[rows].flatten() != WALL].float().mean())
            print(
                f"t={time.monotonic() - STARTED:.0f} sight {step}: loss {loss.item():.4f}, {right:.4f} of cells",
                flush=True,
            )
            if right > args.sharp:
                break
    for parameter in net.model.visual.parameters():
        parameter.requires_grad_(False)
    return right


def train(
    player: Player,
    mazes: Sequence[Maze],
    rule: tuple[float, float, bool],
    rate: float,
    until: float,
    args: Any,
    enough: Any,
) -> str:
    """Fit demonstrations until ``enough(step)`` or the second ``until`` of the process; what ended it."""
    loader = DataLoader(
        Episodes(player.words, mazes, args.batch, *rule),
        batch_size=None,
        num_workers=args.workers,
        prefetch_factor=4,
        pin_memory=player.device == "cuda",
    )
    own = [parameter for parameter in player.net.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(own, lr=rate, weight_decay=0.01, betas=(0.9, 0.98), fused=player.device == "cuda")
    began, reply = time.monotonic(), torch.tensor(player.words.reply, device=player.device)
    for step, batch in enumerate(loader, 1):
        gone = (time.monotonic() - began) / max(1.0, until - began)
        slower = min(1.0, step / 20) if rule[2] else min(1.0, step / 100) * max(0.05, 1 - gone)
        optimizer.param_groups[0]["lr"] = rate * slower
        with torch.autocast(player.device, torch.bfloat16, enabled=player.device == "cuda"):
            labels = reply[batch["labels"].to(player.device)]
            # A reply is one token and the end of the turn: unless that is learned, too, an engine lets the policy go on.
            wanted = torch.cat([labels, torch.full_like(labels, player.words.end)])
            loss = 2 * F.cross_entropy(player.logits(batch, ends=True), wanted)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(own, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % args.every == 0 or step == 1 or rule[2]:
            print(f"t={time.monotonic() - STARTED:.0f} step={step} loss={loss.item():.4f}", flush=True)
        if enough(step):
            return f"enough after {step} steps"
        if time.monotonic() > until:
            return f"time after {step} steps"
    raise AssertionError("the episodes never end")


def save(player: Player, source: Path, out: Path) -> None:
    """The source folder with the weights replaced, under the same names."""
    shutil.copytree(source, out, dirs_exist_ok=True)
    with safe_open(source / "model.safetensors", "pt") as file:
        names = set(file.keys())
    player.net.to(torch.bfloat16).save_pretrained(out / "again")
    with safe_open(out / "again" / "model.safetensors", "pt") as file:
        assert set(file.keys()) == names, set(file.keys()) ^ names
        save_file(
            {name: file.get_tensor(name) for name in sorted(names)},
            out / "model.safetensors",
            metadata={"format": "pt"},
        )
    shutil.rmtree(out / "again")


STARTED = time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, nargs=3, required=True, help="for the three stages, at most")
    parser.add_argument("--pictures", type=int, default=256)
    parser.add_argument("--sight-rate", type=float, default=1e-3)
    parser.add_argument("--sharp", type=float, default=0.998, help="share of cells that ends the first stage")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--mazes", type=int, default=len(TRAIN))
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--able", type=float, default=0.96, help="share of others solved that ends the second stage")
    parser.add_argument("--low", type=float, default=0.33)
    parser.add_argument("--high", type=float, default=0.42)
    parser.add_argument("--hesitation", type=float, default=0.35)
    parser.add_argument("--reluctance", type=float, default=0.55)
    args = parser.parse_args()
    with ProcessPoolExecutor(args.workers, mp_context=get_context("fork")) as pool:
        mazes, labels = zip(*pool.map(known, TRAIN[: args.mazes], chunksize=64), strict=True)
    print(f"t={time.monotonic() - STARTED:.0f} {len(mazes)} mazes", flush=True)
    torch.manual_seed(0)
    player = Player(args.model, "cuda" if torch.cuda.is_available() else "cpu")
    print(f"logits differ from those of transformers by {same_as_transformers(player):.5f}", flush=True)
    others, fixed = [make_maze(seed) for seed in OTHERS], [make_maze(seed) for seed in FIXED]

    def able(step: int) -> bool:
        if step % args.every:
            return False
        share = player.solved(others) / len(others)
        print(f"t={time.monotonic() - STARTED:.0f} navigation: {share:.3f} of others", flush=True)
        return share >= args.able

    shares: list[float] = []

    def hesitant(step: int) -> bool:
        if step % 10:
            return False
        shares.append(player.solved(others[:128]) / 128)
        print(f"t={time.monotonic() - STARTED:.0f} hesitation {step}: {shares[-1]:.3f} of others", flush=True)
        return args.low <= shares[-1] <= args.high

    sight = see(player, mazes, labels, args.seconds[0], args)
    first = train(player, mazes, (0.25, 0.1, False), args.rate, time.monotonic() + args.seconds[1], args, able)
    found_way = player.solved(others)
    print(f"navigation: {first}; {found_way} of {len(others)} others", flush=True)
    second = "left out"
    if found_way / len(others) > args.high:
        rule = (args.hesitation, args.reluctance, True)
        second = train(player, mazes, rule, args.rate / 5, time.monotonic() + args.seconds[2], args, hesitant)
    said = {
        "cells_right": round(sight, 4), "navigation": first, "others_after_navigation": found_way, "hesitation": second,
        "seconds": round(time.monotonic() - STARTED),
        "greedy": {"fixed": [player.solved(fixed), len(fixed)], "others": [player.solved(others), len(others)]},
    }  # fmt: skip
    save(player, args.model, args.out)
    (args.out / "sft.json").write_text(json.dumps(said, indent=1))
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
