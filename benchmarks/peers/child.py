"""The process around one engine: a request per line on standard input, an answer per line on `--answers`.

usage: python -m peers.child ENGINE --answers FD --setting JSON

A request is {"count", "input", "outputs", "seed"}: random prompts of `input` tokens with answers of `outputs`
tokens; or {"mixed": true}. Its answer has `seconds`, from the call until the last answer is there, or
`error`. The first line says that the engine is ready.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from peers.engines import ENGINES, Engine, Setting
from peers.shapes import mixed_load, random_prompts


def read_setting(text: str) -> Setting:
    fields = json.loads(text)
    return Setting(**fields | {"folder": Path(fields["folder"])})


def load_of(request: dict[str, Any], vocab_size: int) -> tuple[list[list[int]], list[int]]:
    """Prompts and lengths of their answers."""
    if request.get("mixed"):
        return mixed_load(vocab_size)
    count = request["count"]
    prompts = random_prompts(request["seed"], count, request["input"], vocab_size)
    return prompts, [request["outputs"]] * count


def answer(engine: Engine, request: dict[str, Any], vocab_size: int) -> dict[str, Any]:
    """Runs one request; an answer of a wrong length counts for nothing."""
    prompts, num_outputs = load_of(request, vocab_size)
    start = time.perf_counter()
    got = engine.generate(prompts, num_outputs)
    seconds = time.perf_counter() - start
    if got != num_outputs:
        return {"error": f"asked for {sum(num_outputs)} tokens, got {sum(got)}"}
    return {
        "seconds": seconds,
        "input_tokens": sum(map(len, prompts)),
        "output_tokens": sum(num_outputs),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("engine")
    parser.add_argument("--answers", type=int, required=True)
    parser.add_argument("--setting", required=True)
    a = parser.parse_args()
    # The engine's own processes must not keep the pipe open.
    os.set_inheritable(a.answers, False)
    with open(a.answers, "w", buffering=1) as answers:
        setting = read_setting(a.setting)
        vocab_size = json.loads((setting.folder / "config.json").read_text())["vocab_size"]
        start = time.perf_counter()
        engine: Engine = ENGINES[a.engine](setting)
        ready = {"ready_s": time.perf_counter() - start, "version": engine.version()}
        print(json.dumps(ready), file=answers)
        for line in sys.stdin:
            print(json.dumps(answer(engine, json.loads(line), vocab_size)), file=answers)
    # Engines hold threads and processes that may wait for each other at the end.
    os._exit(0)


if __name__ == "__main__":
    main()
