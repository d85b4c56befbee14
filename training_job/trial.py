"""``python -m training_job try``: one episode of a task on this computer, with replies of a person, and whether the environment
keeps its side of the bargain. No model, no cluster, no bucket."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final

from nightshift.contract import ExitCode, RunSpec, SeedData
from training_job.errors import BadConfiguration, JobError, classify
from training_job.plan import read_spec_file
from training_job.plug import TaskPlan, problem_of_row

_SHOWN: Final = 2_000
"""Characters of a message that are printed."""
UNREADABLE: Final = "This is no answer to anything."
"""What is said once the given replies are used up: an environment must bear it."""


@dataclass
class Episode:
    """What was said, what it paid, and what is wrong with the environment."""

    lines: list[str] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def play(plan: TaskPlan, row: Mapping[str, Any], replies: Sequence[str]) -> Episode:
    """One episode of an item; after ``replies`` what nobody can read, until the environment ends it."""
    found = Episode()
    make = plan.environment_class()

    def fresh() -> Any:
        return make(env_config=dict(plan.config), extras={**row, "max_turns": plan.max_turns})

    prompt = list(row.get("prompt", []))
    first, _ = fresh().init(prompt)
    env = fresh()
    messages, _ = env.init(prompt)
    if messages != first:
        found.problems.append("the same row gave two different beginnings: draw from the row's seed alone")
    found.problems += _problems_of_messages(messages, "init")
    if found.problems:
        return found
    found.lines += _told(messages)
    said = chain(replies, repeat(UNREADABLE))
    for turn in range(1, plan.max_turns + 2):
        if turn > plan.max_turns:
            found.problems.append(f"the episode goes on after max_turns, {plan.max_turns}: end it yourself")
            break
        reply = next(said)
        found.lines.append(f"assistant: {reply[:_SHOWN]}")
        output = env.step(reply)
        problems = [f"turn {turn}: {problem}" for problem in problems_of_turn(output)]
        found.problems += problems
        if problems:  # the first turn that nothing can use is as far as anybody gets
            break
        found.rewards.append(float(output["reward"]))
        found.lines.append(f"  reward {found.rewards[-1]:g}{', done' if output['done'] else ''}")
        found.lines += _told(output["observations"])
        if output["done"]:
            break
    env.close()
    return found


def problems_of_turn(output: Mapping[str, Any]) -> Iterator[str]:
    """What a trainer cannot use of what ``step`` answered."""
    missing = {"observations", "reward", "done", "metadata"} - output.keys()
    if missing:
        yield f"step answers without {', '.join(sorted(missing))}"
        return
    reward = output["reward"]
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        yield f"reward is {reward!r}, not a finite number"
    if not isinstance(output["done"], bool):
        yield f"done is {output['done']!r}, not True or False"
    if not output["done"] and not output["observations"]:
        yield "the episode goes on without an observation: the model has nothing to answer"
    yield from _problems_of_messages(output["observations"], "observations")
    try:
        json.dumps(output["metadata"])
    except (TypeError, ValueError) as error:
        yield f"metadata cannot be written as JSON: {error}"


def _problems_of_messages(messages: Any, where: str) -> Iterator[str]:
    if not messages and where != "init":
        return
    problem = problem_of_row({"prompt": messages})
    if problem is not None:
        yield f"{where}: {problem.replace('prompt', 'it')}"


def _told(messages: Any) -> Iterator[str]:
    for message in messages:
        content = message.get("content", "") if isinstance(message, dict) else message
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for part in parts if isinstance(parts, list) else []:
            if part.get("type") == "text":
                yield f"{message.get('role')}: {str(part.get('text'))[:_SHOWN]}"
            else:
                url = str(part.get("image_url", {}).get("url", ""))
                yield f"{message.get('role')}: [{part.get('type')}, {len(url)} characters of {url.partition(',')[0][:40]}]"


def main(
    spec: Path, item: int, replies: Path | None, row: str | None, code: Path | None, say: Callable[[str], None] = print
) -> int:
    """0 where the environment keeps its side, 65 where it does not, and the exit code of whatever it raises."""
    try:
        asked = read_spec_file(spec)
        if code is not None:
            sys.path.insert(0, str(code))
        plan = TaskPlan(asked.task.environment, dict(asked.task.config), asked.training.max_turns)
        given = [] if replies is None else _replies_in(replies)
        found = play(plan, _row(asked, item, row), given)
    except (OSError, ValueError) as error:
        say(f"NO  {spec}: {error}")
        return int(ExitCode.BAD_DATA)
    except JobError as error:
        say(f"NO  {error}")
        return int(error.exit_code)
    except Exception as error:  # noqa: BLE001 - the task's own code: its last lines are what its author needs
        known = classify(error)
        say(f"NO  {known}")
        return int(known.exit_code)
    for line in found.lines:
        say(line)
    score, least = sum(found.rewards), asked.task.success.min_score
    verdict = "solved" if score >= least else "not solved"
    say(f"\n{len(found.rewards)} turns, rewards sum to {score:g}: {verdict} (task.success.min_score {least:g})")
    for problem in found.problems:
        say(f"NO  {problem}")
    return int(ExitCode.BAD_DATA if found.problems else ExitCode.OK)


def _row(spec: RunSpec, item: int, row: str | None) -> dict[str, Any]:
    if row is not None:
        given = json.loads(row)
        if not isinstance(given, dict):
            raise BadConfiguration("--row", "it is no JSON object")
        return given
    if not isinstance(spec.task.eval, SeedData):
        raise BadConfiguration("--row", "the eval items are rows of a file: give one as JSON")
    return {"seed": spec.task.eval.start + item}


def _replies_in(path: Path) -> list[str]:
    """One reply a block; a line of three dashes is between two."""
    return [block.strip() for block in ("\n" + path.read_text()).split("\n---\n")]
