"""A fresh vLLM with the published adapter plays the mazes: ``python bench/gpu/serve.py BASE BUCKET RUN_ID OUT``.

The engine starts at once, while the run may still train; the adapter is fetched from ``adapters/best/`` once the manifest is
there, and its digests are held to the manifest's. Base and adapter play the fixed 64 and 256 others, all greedily; PEFT loads
the adapter, too."""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import boto3
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

from bench.gpu.rooms import RoomTextEnv
from nightshift.contract import Manifest, RunKeys
from nightshift.contract.evals import wilson_interval
from training_job.trainers.skyrl.experiment import NEVER

OTHERS = 500_000


def fetched(bucket: str, run_id: str, folder: Path, deadline: float) -> Path:
    """The published best adapter. Raises TimeoutError, and ValueError where bytes differ from the manifest."""
    s3, keys = boto3.client("s3"), RunKeys(run_id)
    while True:
        try:
            manifest = Manifest.model_validate_json(s3.get_object(Bucket=bucket, Key=keys.manifest)["Body"].read())
            break
        except s3.exceptions.NoSuchKey:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{keys.manifest} did not come") from None
            time.sleep(1)
    folder.mkdir(parents=True)
    for name, digest in manifest.objects.items():
        if name.startswith("adapters/best/"):
            body = s3.get_object(Bucket=bucket, Key=keys.prefix + name)["Body"].read()
            if hashlib.sha256(body).hexdigest() != digest.sha256:
                raise ValueError(f"{name} is not what the manifest says")
            (folder / name.rsplit("/", 1)[1]).write_bytes(body)
    return folder


def loaded_by_peft(base: Path, adapter: Path) -> dict[str, int]:
    """PEFT's own reading of the published folder, on the CPU: how many lora_B are not zero, and where."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForImageTextToText

    net = AutoModelForImageTextToText.from_pretrained(str(base), dtype=torch.float32)
    named = dict(PeftModel.from_pretrained(net, str(adapter)).named_parameters())
    second = {name: bool(tensor.any()) for name, tensor in named.items() if "lora_B" in name}
    tower = sum(".visual." in name for name in second)
    return {"nonzero": sum(second.values()), "total": len(second), "in_the_vision_tower": tower}


def solved(
    engine: LLM, params: SamplingParams, seeds: range, turns: int, adapter: LoRARequest | None
) -> dict[str, Any]:
    """Plays all mazes at once, a turn at a time."""
    games = []
    for seed in seeds:
        env = RoomTextEnv(extras={"seed": seed, "max_turns": turns})
        games.append((env, *env.init([])[:1]))
    live, won, began = [(env, list(talk)) for env, talk in games], 0, time.monotonic()
    while live:
        outputs = engine.chat([talk for _, talk in live], params, use_tqdm=False, lora_request=adapter)
        still = []
        for (env, talk), output in zip(live, outputs, strict=True):
            text = output.outputs[0].text
            step = env.step(text)
            talk += [{"role": "assistant", "content": text}, *step["observations"]]
            if step["done"]:
                won += env.solved
            else:
                still.append((env, talk))
        live = still
    low, high = wilson_interval(won, len(seeds))
    return {
        "solved": won,
        "of": len(seeds),
        "low": round(low, 3),
        "high": round(high, 3),
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", type=Path)
    parser.add_argument("bucket")
    parser.add_argument("run_id")
    parser.add_argument("out", type=Path)
    parser.add_argument("--wait", type=float, default=600, help="seconds for the manifest to come")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--others", type=int, default=256)
    given = parser.parse_args()
    others = range(OTHERS, OTHERS + given.others)
    deadline = time.monotonic() + given.wait
    engine = LLM(
        str(given.base), enable_lora=True, max_lora_rank=16, enforce_eager=True, max_model_len=4_096, max_num_seqs=256,
        gpu_memory_utilization=0.1, kv_cache_memory_bytes=4 << 30,  # said outright: a run beside it takes and gives back memory
        limit_mm_per_prompt={"image": 21, "video": 0}, dtype="bfloat16", seed=0,
    )  # fmt: skip
    tokenizer = engine.get_tokenizer()
    special = sorted(i for i, token in tokenizer.added_tokens_decoder.items() if token.special)
    bias = {i: NEVER for i in special if i != tokenizer.eos_token_id}
    params = SamplingParams(temperature=0.0, max_tokens=4, logit_bias=bias)
    found: dict[str, Any] = {"base": solved(engine, params, range(64), given.turns, None)}
    found["base_on_others"] = solved(engine, params, others, given.turns, None)
    print(found, flush=True)
    folder = fetched(given.bucket, given.run_id, given.out.parent / "fetched-adapter", deadline)
    adapter = LoRARequest("published", 1, str(folder))
    found["adapter"] = solved(engine, params, range(64), given.turns, adapter)
    found["adapter_on_others"] = solved(engine, params, others, given.turns, adapter)
    found["lora_b"] = loaded_by_peft(given.base, folder)
    given.out.write_text(json.dumps(found, indent=1))
    print(found, flush=True)


if __name__ == "__main__":
    main()
