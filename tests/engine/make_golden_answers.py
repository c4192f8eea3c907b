"""Makes golden_answers.json: greedy answers of SmolLM2-135M-Instruct by implementations that are not ours.

llama.cpp (llama-cpp-python) turns the texts into ids, transformers reads the GGUF into float32 and answers.

usage: make_golden_answers.py ids FILE.gguf OUT.json       where llama_cpp is installed
       make_golden_answers.py answers FILE.gguf OUT.json   where transformers and accelerate are installed
"""

import json
import sys
from pathlib import Path
from typing import Any

NUM_TOKENS = 48
NUM_TOP = 5
LEAST_MARGIN = 2e-4

SENTENCE = (
    "The quick brown fox jumps over the lazy dog near the river bank while the sun sets slowly. "
)
CHATS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "用一句话解释什么是光合作用。",
    "Explain recursion to a child. 🙂🚀",
    "List three prime numbers above 1000 and add them up: 1009, 1013, ...",
]
TEXTS = [
    "Once upon a time",
    "def fibonacci(n):\n    ",
    "import numpy as np\n\nclass Matrix:\n    def __init__(self, rows, cols):\n",
    "SELECT name, COUNT(*) FROM orders WHERE",
    "<html>\n<body>\n  <h1>",
    "从前有座山，山里有座庙，",
    "Příliš žluťoučký kůň úpěl ďábelské ódy. ",
    "Привет! Меня зовут",
    "これは日本語の文章です。",
    "😀😃😄😁 The emoji above mean",
    "3.14159265358979 2.71828182845904 1.41421356",
    "12 * 12 = 144\n13 * 13 = 169\n14 * 14 =",
    '{"name": "Ada", "born": 1815, "fields": [',
    "    \t\n\n   indented strangely\n\t\t",
    "A",
    "To be, or not to be, that is the question:\n",
    "Q: Who wrote Faust?\nA: Goethe.\nQ: Who wrote Hamlet?\nA:",
    "Water boils at a temperature of",
    SENTENCE * 20,
    SENTENCE * 75,
]


def make_ids(gguf: Path, out: Path) -> None:
    import llama_cpp

    model = llama_cpp.Llama(str(gguf), vocab_only=True, verbose=False)
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    prompts: list[dict[str, Any]] = []
    for question in CHATS:
        text = (
            f"<|im_start|>system\n{system}<|im_end|>\n"
            f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        )
        ids = model.tokenize(text.encode(), add_bos=False, special=True)
        prompts.append({"chat": question, "prompt_token_ids": ids})
    for text in TEXTS:
        ids = model.tokenize(text.encode(), add_bos=False, special=False)
        prompts.append({"prompt": text, "prompt_token_ids": ids})
    out.write_text(json.dumps(prompts))


def make_answers(gguf: Path, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    prompts = json.loads(out.read_text())
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    ).eval()
    for prompt in prompts:
        ids = torch.tensor([prompt["prompt_token_ids"]])
        with torch.inference_mode():
            answer = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=NUM_TOKENS,
                do_sample=False,
                return_dict_in_generate=True,
                output_scores=True,
            )
        new = answer.sequences[0, ids.shape[1] :].tolist()
        logprobs = [score[0].log_softmax(-1) for score in answer.scores]
        prompt["token_ids"] = new
        prompt["logprobs"] = [
            round(float(row[token]), 5) for row, token in zip(logprobs, new, strict=True)
        ]
        # A choice between equals would say nothing about who is right.
        margins = [float(-row.topk(2).values.diff()) for row in logprobs]
        if min(margins) < LEAST_MARGIN:
            raise SystemExit(f"{prompt}: two tokens are {min(margins)} apart; take another text")
        prompt["margins"] = [round(margin, 3) for margin in margins]
        top = logprobs[0].topk(NUM_TOP)
        prompt["first_top"] = [
            [token, round(value, 5)]
            for token, value in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        ]
        print(len(prompt["prompt_token_ids"]), new[:8], flush=True)
    lines = ",\n".join(json.dumps(prompt, ensure_ascii=False) for prompt in prompts)
    out.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    make = {"ids": make_ids, "answers": make_answers}[sys.argv[1]]
    make(Path(sys.argv[2]), Path(sys.argv[3]))
