"""lm-eval on tasks of our own: python lm_eval_client.py URL KEY MODEL, in the folder of the tasks"""

import json
import os
import sys
import urllib.request
from pathlib import Path

url, key, model = sys.argv[1:]
os.environ |= {"OPENAI_API_KEY": key, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

from lm_eval import simple_evaluate  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

TASKS = TaskManager(include_path=str(Path.cwd()), include_defaults=False)


def post(path: str, **body) -> dict:
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = urllib.request.Request(url + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def evaluated(kind: str, path: str, task: str, **arguments) -> list[dict]:
    """The samples of a task, one per question."""
    arguments |= {"base_url": url + path, "model": model, "max_length": 512}
    found = simple_evaluate(
        model=kind,
        model_args=arguments,
        tasks=[task],
        task_manager=TASKS,
        apply_chat_template=kind == "local-chat-completions",
        bootstrap_iters=0,
    )
    return sorted(found["samples"][task], key=lambda sample: sample["doc_id"])


def own_likelihood(context: str, continuation: str) -> tuple[float, bool]:
    """The same from `prompt_logprobs`: the sum over the continuation, and whether a greedy model would write it."""
    ids = [
        post("/tokenize", prompt=text, add_special_tokens=False)["tokens"]
        for text in (context, context + continuation)
    ]
    answer = post("/v1/completions", prompt=ids[1], max_tokens=1, prompt_logprobs=1)
    places = zip(ids[1], answer["choices"][0]["prompt_logprobs"], strict=True)
    tokens = [entries[str(token)] for token, entries in list(places)[len(ids[0]) :]]
    return sum(each["logprob"] for each in tokens), all(each["rank"] == 1 for each in tokens)


remote = {"tokenizer_backend": "auto", "auth_token": key}
for batch in ({"batch_size": 3}, {"batch_size": 2, "num_concurrent": 3}):
    samples = evaluated("local-completions", "/v1/completions", "pillion_choose", **remote, **batch)
    assert len(samples) == 4
    for sample in samples:
        pairs = zip(sample["arguments"], sample["filtered_resps"], strict=True)
        for (context, continuation), (likelihood, is_greedy) in pairs:
            own, own_greedy = own_likelihood(context, continuation)
            assert abs(likelihood - own) < 0.01, (continuation, likelihood, own)
            assert is_greedy == own_greedy, continuation

limits = {"max_tokens": 12, "temperature": 0, "stop": ["\n"]}
completions = ("local-completions", "/v1/completions", "pillion_write")
chats = ("local-chat-completions", "/v1/chat/completions", "pillion_write")
evaluated(
    *completions, **remote
)  # from now on prompts are cached, and answers are the same to the bit
for sample in evaluated(*completions, **remote):
    context, _ = sample["arguments"][0]
    own = post("/v1/completions", prompt=context, **limits)["choices"][0]["text"]
    assert sample["resps"][0][0] == own, sample
evaluated(*chats)
for sample in evaluated(*chats):
    messages = json.loads(sample["arguments"][0][0][0])
    own = post("/v1/chat/completions", messages=messages, **limits)["choices"][0]["message"]
    assert sample["resps"][0][0] == own["content"], sample
