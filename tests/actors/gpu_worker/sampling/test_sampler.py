"""The whole sampler against one row at a time in float64, and what must never change a row's tokens."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pillion.actors.gpu_worker.sampling import slot_table
from pillion.actors.gpu_worker.sampling.sampler import Sampler
from pillion.actors.gpu_worker.sampling.slot_table import SlotTable
from pillion.kernels.gumbel_noise import gumbel_noise
from pillion.messages.sampling import (
    MAX_BAD_WORD_SEQUENCES,
    MAX_BAD_WORD_TOKENS,
    MAX_END_TOKEN_IDS,
    MAX_LOGIT_BIAS,
    TokenSampling,
)
from pillion.runtime.errors import InvariantBroken

MakeRig = Callable[..., Any]
MakeSampling = Callable[..., TokenSampling]


def edited_logits(
    logits: list[float], sampling: TokenSampling, prompt: list[int], produced: list[int]
) -> tuple[list[float], int | None]:
    """The logits after all edits, and the token to take if the bans left nothing."""
    edited = list(logits)
    if sampling.allowed_token_ids:
        allowed = set(sampling.allowed_token_ids)
        edited = [x if token in allowed else -math.inf for token, x in enumerate(edited)]
    for token, bias in sampling.logit_bias.items():
        edited[token] += bias
    for token in range(len(edited)):
        count = produced.count(token)
        if count or token in prompt:
            factor = sampling.repetition_penalty
            edited[token] = edited[token] / factor if edited[token] > 0 else edited[token] * factor
        edited[token] -= sampling.frequency_penalty * count
        edited[token] -= sampling.presence_penalty if count else 0.0
    banned = set()
    if len(produced) < sampling.min_tokens:
        banned |= set(sampling.stop_token_ids)
    for *beginning, last in sampling.bad_words:
        if not beginning or produced[-len(beginning) :] == beginning:
            banned.add(last)
    remaining = [x for token, x in enumerate(edited) if token not in banned]
    if all(x == -math.inf for x in remaining):
        return edited, min(banned, key=lambda token: (-edited[token], token))
    return [-math.inf if token in banned else x for token, x in enumerate(edited)], None


def possible_tokens(edited: list[float], sampling: TokenSampling) -> dict[int, float]:
    """The tokens that the filters leave, with their tempered logits."""
    best = max(edited)
    z = {t: (x - best) / sampling.temperature for t, x in enumerate(edited) if x > -math.inf}
    if sampling.min_p > 0:
        z = {t: x for t, x in z.items() if x >= math.log(sampling.min_p) - 1e-6}
    if 0 < sampling.top_k < len(z):
        kth = sorted(z.values(), reverse=True)[sampling.top_k - 1]
        z = {t: x for t, x in z.items() if x >= kth - 1e-6}
    if sampling.top_p < 1.0:
        total, before, cut = sum(map(math.exp, z.values())), 0.0, 0.0
        for x in sorted(z.values(), reverse=True):
            if before >= sampling.top_p * total * (1 + 1e-6):
                break
            before, cut = before + math.exp(x), x
        z = {t: x for t, x in z.items() if x >= cut - 1e-6}
    return z


def check_token(
    token: int,
    logits: list[float],
    sampling: TokenSampling,
    prompt: list[int],
    produced: list[int],
) -> bool:
    """Fails if the token is wrong; False if it was too close to tell."""
    edited, fallback = edited_logits(logits, sampling, prompt, produced)
    if fallback is not None:
        assert token == fallback
        return True
    if sampling.temperature < 1e-5:
        score = {t: x for t, x in enumerate(edited) if x > -math.inf}
    else:
        z = possible_tokens(edited, sampling)
        noise = gumbel_noise(
            torch.tensor([sampling.seed]),
            torch.tensor([len(prompt) + len(produced)]),
            torch.tensor(list(z)),
        )[0].tolist()
        score = {t: x + g for (t, x), g in zip(z.items(), noise, strict=True)}
    assert token in score
    ranked = sorted(score, key=lambda t: (-score[t], t))
    if len(ranked) > 1 and score[ranked[0]] - score[ranked[1]] < 1e-3:
        return False
    assert token == ranked[0]
    return True


def random_sampling(rng: np.random.Generator, vocab_size: int, make: MakeSampling) -> TokenSampling:
    """Every feature with some chance."""

    def chance(share: float) -> bool:
        return bool(rng.random() < share)

    def ids(most: int) -> list[int]:
        count = int(rng.integers(1, most + 1))
        return [int(token) for token in rng.permutation(vocab_size)[:count]]

    fields: dict[str, Any] = {"seed": int(rng.integers(-(2**63), 2**63 - 1))}
    if chance(0.8):
        fields["temperature"] = float(rng.choice([0.2, 0.7, 1.0, 1.8, 100.0]))
    if chance(0.3):
        fields["top_k"] = int(rng.integers(1, vocab_size + 5))
    if chance(0.3):
        fields["top_p"] = float(rng.choice([0.05, 0.5, 0.9, 0.99]))
    if chance(0.3):
        fields["min_p"] = float(rng.choice([0.001, 0.1, 0.9]))
    if chance(0.3):
        fields["repetition_penalty"] = float(rng.choice([0.01, 0.7, 1.2, 100.0]))
    if chance(0.3):
        fields["frequency_penalty"] = float(rng.uniform(-2, 2))
    if chance(0.3):
        fields["presence_penalty"] = float(rng.uniform(-2, 2))
    if chance(0.3):
        fields["logit_bias"] = {token: float(rng.uniform(-100, 100)) for token in ids(5)}
    if chance(0.3):
        fields["allowed_token_ids"] = ids(8)
    if chance(0.5):
        fields["stop_token_ids"] = ids(4)
        fields["min_tokens"] = int(rng.integers(0, 12))
    if chance(0.4):
        fields["bad_words"] = [
            [int(token) for token in rng.integers(0, vocab_size, rng.integers(1, 4))]
            for _ in range(int(rng.integers(1, 6)))
        ]
    if chance(0.3):
        fields["logprobs"] = int(rng.integers(0, 5))
    return make(**fields)


@pytest.mark.parametrize(("vocab_size", "seed"), [(7, 0), (7, 1), (33, 2), (33, 3), (700, 4)])
def test_random_batches_of_all_features_equal_one_row_at_a_time(
    vocab_size: int, seed: int, make_rig: MakeRig, make_sampling: MakeSampling
) -> None:
    rng = np.random.default_rng(seed)
    rig = make_rig(vocab_size, max_num_seqs=12)
    seated: dict[int, tuple[TokenSampling, list[int], list[int]]] = {}
    told, untold = 0, 0
    for _ in range(60):
        for slot in range(12):
            if slot not in seated and rng.random() < 0.5:
                sampling = random_sampling(rng, vocab_size, make_sampling)
                prompt = rng.integers(0, vocab_size, rng.integers(1, 6)).tolist()
                produced = rng.integers(0, vocab_size, rng.integers(0, 4)).tolist()
                rig.sampler.add(slot, sampling, np.array(prompt + produced, np.int32), len(prompt))
                rig.tokens[slot] = prompt + produced
                seated[slot] = sampling, prompt, produced
        slots = [slot for slot in rng.permutation(12).tolist() if slot in seated]
        slots = slots[: int(rng.integers(1, 13))]
        logits = torch.from_numpy(rng.normal(0, 3, (len(slots), vocab_size)).astype(np.float32))
        sampled = rig.sample(logits, slots)
        tokens = sampled.token_ids.tolist()
        valid = (rng.random(len(slots)) < 0.9).tolist()
        for row, slot in enumerate(slots):
            sampling, prompt, produced = seated[slot]
            sure = check_token(tokens[row], logits[row].tolist(), sampling, prompt, produced)
            told, untold = told + sure, untold + (not sure)
            if valid[row]:
                produced.append(tokens[row])
        rig.observe(slots, tokens, valid)
        for slot in list(seated):
            if rng.random() < 0.1:
                rig.sampler.release(slot)
                del seated[slot]
    assert told > 200
    assert untold < 0.05 * told


def test_what_most_sequences_ask_for_goes_to_the_device_in_one_copy(
    make_sampling: MakeSampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads: list[Any] = []

    def upload(array: Any) -> torch.Tensor:
        uploads.append(array)
        return torch.from_numpy(array)

    def create(self: SlotTable, *arguments: Any) -> None:
        make(self, *arguments)
        # As where the device has memory of its own.
        self._shares_memory, self.device_rows = False, self.device_rows.clone()

    make = SlotTable.__init__
    monkeypatch.setattr(SlotTable, "__init__", create)
    sampler = Sampler(50, 4, 64, torch.device("cpu"), upload=upload)
    monkeypatch.setattr(slot_table, "upload", None)  # the way of a table by itself
    for slot in (0, 2, 3):
        sampling = make_sampling(temperature=0.5 + slot, top_k=slot, seed=slot, logprobs=slot)
        sampler.add(slot, sampling, np.array([1, 2], np.int32), 2)
    shape, integers, features, _ = sampler.tables()
    assert len(uploads) == 1
    assert shape[:, 0].tolist() == [0.5, 0.0, 2.5, 3.5]
    assert integers.tolist() == [[50, 0], [0, 0], [2, 2], [3, 3]]
    assert features[:, 1].tolist() == [0, -1, 2, 3]
    sampler.tables()
    assert len(uploads) == 1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 40), st.integers(1, 6))
def test_any_settings_give_a_finite_answer_inside_the_allowed_set(
    seed: int, vocab_size: int, num_rows: int
) -> None:
    rng = np.random.default_rng(seed)

    def make(**fields: Any) -> TokenSampling:
        defaults = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        defaults |= {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
        defaults |= {"stop_token_ids": [], "min_tokens": 0, "max_tokens": 9, "logprobs": None}
        defaults |= {"prompt_logprobs": None, "logit_bias": {}, "allowed_token_ids": []}
        return TokenSampling(**({"bad_words": []} | defaults | fields))

    sampler = Sampler(vocab_size, num_rows, 64, torch.device("cpu"))
    requested = [random_sampling(rng, vocab_size, make) for _ in range(num_rows)]
    tokens = rng.integers(0, vocab_size, (num_rows, 9)).astype(np.int32)
    for slot, sampling in enumerate(requested):
        sampler.add(slot, sampling, tokens[slot], 5)
    slots_np = np.arange(num_rows)
    logits = torch.from_numpy(rng.normal(0, 30, (num_rows, vocab_size + 3)).astype(np.float32))
    logits[:, vocab_size:] = math.nan
    sampled = sampler.sample(
        logits, torch.from_numpy(slots_np), slots_np, torch.full((num_rows,), 9)
    )
    for sampling, token in zip(requested, sampled.token_ids.tolist(), strict=True):
        assert 0 <= token < vocab_size
        assert token in (sampling.allowed_token_ids or [token])
    if sampled.logprobs is not None:
        assert sampled.logprobs.logprobs.isfinite().all()


def mixed_rig(make_rig: MakeRig) -> Any:
    """Six slots that differ in everything."""
    rig = make_rig(200, max_num_seqs=8)
    rig.add(0)
    rig.add(1, temperature=1.0, seed=7)
    rig.add(3, temperature=1.0, seed=7, top_p=0.9, presence_penalty=1.0)
    rig.add(4, temperature=0.8, seed=-(2**63), top_k=5, bad_words=[[3, 4], [9]])
    rig.add(6, temperature=1.5, seed=2**63 - 1, min_p=0.1, logit_bias={5: 4.0}, min_tokens=3)
    rig.add(7, repetition_penalty=1.5, allowed_token_ids=list(range(0, 200, 7)), logprobs=2)
    return rig


SLOTS = [0, 1, 3, 4, 6, 7]


def test_a_rows_tokens_depend_on_no_other_row(make_rig: MakeRig) -> None:
    generator = torch.Generator().manual_seed(5)
    steps = torch.randn(20, 8, 200, generator=generator) * 2
    together = mixed_rig(make_rig)
    texts: dict[int, list[int]] = {slot: [] for slot in SLOTS}
    for number, logits in enumerate(steps):
        order = SLOTS[number % 6 :] + SLOTS[: number % 6]
        for slot, token in zip(order, together.step(logits[order], order), strict=True):
            texts[slot].append(token)
    alone = mixed_rig(make_rig)
    for slot in SLOTS:
        assert [alone.step(logits[[slot]], [slot])[0] for logits in steps] == texts[slot]


def test_a_seed_gives_the_same_tokens_in_another_slot_and_after_a_restart(
    make_rig: MakeRig,
) -> None:
    steps = torch.randn(12, 300, generator=torch.Generator().manual_seed(6)) * 2
    fields = {"temperature": 1.0, "seed": 99, "top_p": 0.95, "frequency_penalty": 0.4}
    fields |= {"bad_words": [[5], [1, 2, 3]], "min_tokens": 8, "stop_token_ids": [4]}
    rig = make_rig(300)
    rig.add(2, prompt=[8, 9, 10], **fields)
    tokens = [rig.step(logits[None], [2])[0] for logits in steps]
    for done in (0, 1, 5, 11):
        again = make_rig(300)
        again.add(5, prompt=[8, 9, 10], produced=tokens[:done], **fields)
        assert [again.step(logits[None], [5])[0] for logits in steps[done:]] == tokens[done:]


def test_a_released_slot_leaves_nothing_to_its_next_tenant(make_rig: MakeRig) -> None:
    steps = torch.randn(10, 200, generator=torch.Generator().manual_seed(8)) * 2
    tenants: list[dict[str, Any]] = [
        {},
        {"temperature": 1.0, "seed": 3},
        {"presence_penalty": 0.5},
        {"bad_words": [[2]], "min_tokens": 2, "stop_token_ids": [1]},
        {"logprobs": 1},
    ]
    everything = {
        "temperature": 1.0,
        "top_k": 3,
        "repetition_penalty": 3.0,
        "presence_penalty": 2.0,
        "logit_bias": dict.fromkeys(range(40), 50.0),
        "allowed_token_ids": list(range(60)),
        "bad_words": [[token] for token in range(30)],
        "min_tokens": 400,
        "stop_token_ids": list(range(50)),
        "logprobs": 5,
    }
    for explicit_release in (True, False):
        for tenant in tenants:
            fresh, used = make_rig(200), make_rig(200)
            used.add(4, prompt=list(range(100)), produced=list(range(30)), **everything)
            for logits in steps:
                used.step(logits[None], [4])
            if explicit_release:
                used.sampler.release(4)
                used.sampler.release(4)
            for rig in (fresh, used):
                rig.add(4, prompt=[1, 2, 3], **tenant)
            for logits in steps:
                expected, found = (rig.sample(logits[None], [4]) for rig in (fresh, used))
                assert torch.equal(expected.token_ids, found.token_ids)
                assert (expected.logprobs is None) == (found.logprobs is None)
                for rig in (fresh, used):
                    rig.observe([4], expected.token_ids.tolist())


def test_a_released_slots_rows_are_neutral_for_devices_that_edit_every_row(
    make_rig: MakeRig,
) -> None:
    fresh, used = make_rig(50, preallocate=True), make_rig(50, preallocate=True)
    used.add(
        2,
        presence_penalty=1.0,
        logit_bias={3: 1.0},
        allowed_token_ids=[4, 5],
        bad_words=[[6, 7]],
        min_tokens=3,
        stop_token_ids=[8],
    )
    used.sampler.release(2)
    num_tables = 0
    for name in ("_allowed_ids", "_logit_bias", "_penalties", "_min_tokens", "_bad_words"):
        for attribute, table in vars(getattr(fresh.sampler, name)).items():
            if isinstance(table, SlotTable):
                found = getattr(getattr(used.sampler, name), attribute)
                assert torch.equal(found.rows(), table.rows()), (name, attribute)
                num_tables += 1
    assert num_tables >= 7


def test_memory_taken_at_once_or_at_first_use_gives_the_same_tokens(make_rig: MakeRig) -> None:
    steps = torch.randn(10, 8, 200, generator=torch.Generator().manual_seed(2)) * 2
    texts = []
    for preallocate in (True, False):
        rig = make_rig(200, preallocate=preallocate)
        rig.add(0, presence_penalty=1.5, temperature=1.0)
        rig.add(1, bad_words=[[3], [4, 5]])
        texts.append([rig.step(logits[:2], [0, 1]) for logits in steps])
    assert texts[0] == texts[1]


def test_masked_rows_count_for_nothing_even_when_they_share_a_slot(make_rig: MakeRig) -> None:
    rig = make_rig(10)
    rig.add(0, frequency_penalty=2.0, bad_words=[[4, 5]])
    rig.observe([0, 0, 0], [7, 4, 7], [False, True, False])
    logits = torch.zeros(1, 10)
    logits[0, 7], logits[0, 4], logits[0, 5] = 1.0, 2.5, 3.0
    assert rig.sample(logits, [0]).token_ids.tolist() == [7]


def test_padding_columns_are_never_sampled(make_rig: MakeRig) -> None:
    rig = make_rig(6)
    rig.add(0)
    rig.add(1, temperature=1.0)
    rig.add(2, temperature=1.0, top_k=3, logprobs=6)
    logits = torch.full((3, 16), 50.0)
    logits[:, :6] = 0.0
    sampled = rig.sample(logits, [0, 1, 2])
    assert sampled.token_ids.tolist()[0] == 0
    assert (sampled.token_ids < 6).all()
    assert sampled.logprobs is not None
    assert sampled.logprobs.logprobs[0, 0] == pytest.approx(math.log(1 / 6))


def test_an_empty_batch(make_rig: MakeRig) -> None:
    rig = make_rig(6)
    rig.add(0, presence_penalty=1.0, bad_words=[[1]], logprobs=1)
    sampled = rig.sample(torch.zeros(0, 6), [])
    assert sampled.token_ids.shape == (0,)
    assert sampled.logprobs is None
    rig.observe([], [], [])


@pytest.mark.parametrize(
    "fields",
    [
        {"logit_bias": {6: 1.0}},
        {"stop_token_ids": [-1]},
        {"allowed_token_ids": [0, 99]},
        {"bad_words": [[1, 2], [3, 6]]},
        {"bad_words": [[]]},
        {"bad_words": [[1] * (MAX_BAD_WORD_TOKENS + 1)]},
        {"bad_words": [[1]] * (MAX_BAD_WORD_SEQUENCES + 1)},
        {"stop_token_ids": [1] * (MAX_END_TOKEN_IDS + 1)},
        {"logit_bias": dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 0.0)},
    ],
    ids=lambda fields: str(fields)[:40],
)
def test_what_the_edge_should_have_refused_is_refused_by_name(
    fields: dict[str, Any], make_rig: MakeRig
) -> None:
    with pytest.raises(InvariantBroken):
        make_rig(6).add(0, **fields)


@pytest.mark.parametrize(
    ("prompt", "produced"), [([1, 6], []), ([-1], []), ([1], [6]), ([1] * 600, [])]
)
def test_tokens_outside_the_vocabulary_or_the_length_are_refused(
    prompt: list[int], produced: list[int], make_rig: MakeRig
) -> None:
    with pytest.raises(InvariantBroken):
        make_rig(6).add(0, prompt=prompt, produced=produced)
