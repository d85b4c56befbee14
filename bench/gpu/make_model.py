"""A tiny Qwen3-VL with random weights, its tokenizer and its processor: ``python bench/gpu/make_model.py OUT``.

It has the classes, the chat template and the image path of the real one, and a vocabulary of 64 words, of which five are the
maze's replies: one token is one move. A picture of 9x9 cells is scaled to 36x36 pixels (with patches of 2), so that each cell
is one visual token.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

GRID, MERGE = 9, 2
WORDS = 64
TURN_END, PAD = "<|im_end|>", "<|endoftext|>"
SPECIAL = [
    PAD,
    "<|im_start|>",
    TURN_END,
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|vision_pad|>",
    "<unk>",
]
ACTIONS = ["('move',0)", "('move',1)", "('move',2)", "('move',3)", "('stop','stop')"]
REPLIES = [
    f"<observation>maze</observation><justification>way</justification><action>{one}</action>" for one in ACTIONS
]
TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|> ' + message.role + ' ' }}{%- if message.content is string %}"
    "{{- message.content }}{%- else %}{%- for content in message.content %}"
    "{%- if content.type == 'image' or 'image' in content or 'image_url' in content %}"
    "{{- ' <|vision_start|><|image_pad|><|vision_end|> ' }}{%- elif 'text' in content %}{{- content.text }}{%- endif %}"
    "{%- endfor %}{%- endif %}{{- '<|im_end|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|> assistant ' }}{%- endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """Words between spaces; what is not in the vocabulary is ``<unk>``."""
    known = [*REPLIES, "system", "user", "assistant", "."]
    words = [*known, *(f"w{n}" for n in range(WORDS - len(known) - len(SPECIAL))), *SPECIAL]
    inner = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=TURN_END, pad_token=PAD, additional_special_tokens=SPECIAL[1:8],
        clean_up_tokenization_spaces=False, model_max_length=8_192,
    )  # fmt: skip
    made.chat_template = TEMPLATE
    return made


def config(ids: dict[str, int], hidden: int, layers: int, patch: int, depth: int) -> Qwen3VLConfig:
    rope = {"rope_type": "default", "mrope_section": [12, 10, 10], "mrope_interleaved": True, "rope_theta": 10_000.0}
    text: dict[str, Any] = {
        "vocab_size": WORDS, "hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64, "num_key_value_heads": max(1, hidden // 128), "head_dim": 64,
        "max_position_embeddings": 8_192, "tie_word_embeddings": False, "eos_token_id": ids[TURN_END],
        "bos_token_id": None, "pad_token_id": ids[PAD], "rope_parameters": rope,
    }  # fmt: skip
    vision = {
        "depth": depth, "hidden_size": 256, "intermediate_size": 512, "num_heads": 4, "out_hidden_size": hidden,
        "deepstack_visual_indexes": [depth // 2, depth - 1], "patch_size": patch, "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
        "in_channels": 3, "num_position_embeddings": 400,
    }  # fmt: skip
    return Qwen3VLConfig(
        text_config=text, vision_config=vision, tie_word_embeddings=False, image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"], vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )  # fmt: skip


def make(out: Path, hidden: int = 256, layers: int = 4, patch: int = 2, depth: int = 6) -> int:
    """Write model, tokenizer and processor; returns the number of parameters."""
    torch.manual_seed(0)
    words = tokenizer()
    model = Qwen3VLForConditionalGeneration(config(words.get_vocab(), hidden, layers, patch, depth)).to(torch.bfloat16)
    model.save_pretrained(out)
    side = GRID * patch * MERGE
    size = {"shortest_edge": side * side, "longest_edge": side * side}
    shared = {
        "size": size,
        "patch_size": patch,
        "merge_size": MERGE,
        "temporal_patch_size": 2,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(**shared), tokenizer=words, video_processor=Qwen3VLVideoProcessor(**shared),
        chat_template=TEMPLATE,
    ).save_pretrained(out)  # fmt: skip
    words.save_pretrained(out)
    return sum(one.numel() for one in model.parameters())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--patch", type=int, default=2, help="pixels a patch; four patches are a visual token")
    parser.add_argument("--depth", type=int, default=6, help="layers of the vision tower")
    given = parser.parse_args()
    print(f"{make(given.out, given.hidden, given.layers, given.patch, given.depth):,} parameters")
