"""What a worker does with plans, against a dense recomputation of every answer."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from pillion.actors.gpu_worker.pending_output import PendingOutput
from pillion.messages.codec import unpack_ids
from pillion.messages.control import PeerRestarted, Shutdown
from pillion.messages.ids import FINISH_ERROR, FINISH_LENGTH, FINISH_NONE, FINISH_STOP
from pillion.messages.steps import StepOutput
from pillion.runtime.errors import InvariantBroken

MAX_MODEL_LEN = 64
BLOCK_SIZE = 4
POISON = 96


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(90), k=length)


def rows_of(output: StepOutput) -> list[tuple[int, int, list[int], int]]:
    """(slot, position, tokens, finish) per row."""
    tokens = unpack_ids(output.token_ids)
    rows = []
    for slot, position, num_tokens, finish in zip(
        unpack_ids(output.slots),
        unpack_ids(output.positions),
        unpack_ids(output.num_tokens),
        output.finish,
        strict=True,
    ):
        rows.append((slot, position, tokens[:num_tokens], finish))
        tokens = tokens[num_tokens:]
    assert not tokens
    return rows


class TestPlans:
    def test_every_plan_is_executed_in_order_and_answered_once(self, rig: Any) -> None:
        tokens = prompt(9)
        outputs = rig.run(
            rig.plan([(0, 0, 9)], new=[rig.new(0, tokens)]), rig.plan([(0,)]), rig.plan([(0,)])
        )
        assert [(o.step_id, o.plan_id, o.execution) for o in outputs] == [
            (0, 0, 0),
            (1, 1, 0),
            (2, 2, 0),
        ]
        assert rig.tokens(1000) == rig.model.greedy(tokens, 3)

    def test_a_grant_is_executed_repeat_times(self, rig: Any) -> None:
        tokens = prompt(5)
        outputs = rig.step([(2, 0, 5)], new=[rig.new(2, tokens)], repeat=12)
        assert [o.execution for o in outputs] == list(range(12))
        assert rig.tokens(1020) == rig.model.greedy(tokens, 12)

    def test_the_next_plan_ends_a_grant_at_the_step_boundary(self, rig: Any) -> None:
        worker = rig.worker
        worker.on_message(rig.plan([(0, 0, 3)], new=[rig.new(0, prompt(3))], repeat=50), 0)
        for _ in range(5):
            assert worker.tick(0) is not None
        worker.on_message(rig.plan([]), 0)
        outputs = rig.run_dry()
        assert [(o.plan_id, o.execution) for o in outputs] == [(0, n) for n in range(5)] + [(1, 0)]
        assert rig.tokens(1000) == rig.model.greedy(prompt(3), 5)

    def test_a_superseded_plan_still_runs_once(self, rig: Any) -> None:
        new = [rig.new(0, prompt(3))]
        outputs = rig.run(
            rig.plan([(0, 0, 3)], new=new, repeat=9), rig.plan([(0,)], repeat=9), rig.plan([(0,)])
        )
        assert [(o.plan_id, o.execution) for o in outputs] == [(0, 0), (1, 0), (2, 0)]
        assert rig.tokens(1000) == rig.model.greedy(prompt(3), 3)

    def test_a_plan_without_rows_is_answered(self, rig: Any) -> None:
        (output,) = rig.step([], repeat=5)
        assert output.plan_id == 0
        assert not output.slots
        assert not output.token_ids
        assert rig.worker.tick(0) is None

    def test_repeats_leave_out_a_prefill_that_ended_short(self, rig: Any) -> None:
        new = [rig.new(0, prompt(4)), rig.new(1, prompt(9, 1))]
        outputs = rig.step([(0, 0, 4), (1, 0, 5)], new=new, repeat=3)
        assert [unpack_ids(o.slots) for o in outputs] == [[0], [0], [0]]
        rig.step([(0,), (1, 5, 9)])
        assert rig.tokens(1000) == rig.model.greedy(prompt(4), 4)
        assert rig.tokens(1010) == rig.model.greedy(prompt(9, 1), 1)

    def test_a_grant_ends_when_no_row_can_go_on(self, rig: Any) -> None:
        outputs = rig.step([(0, 0, 3)], new=[rig.new(0, prompt(3), max_tokens=4)], repeat=60)
        assert len(outputs) == 4

    def test_stale_generations_are_left_out(self, rig: Any) -> None:
        rig.step([(0, 0, 3)], new=[rig.new(0, prompt(3), generation=7)])
        assert rows_of(rig.step([(0,)], generations={0: 6})[0]) == []
        assert rows_of(rig.step([(0, 0, 2)], generations={0: 8})[0]) == []
        rig.step([(0,)])
        assert rig.tokens(1007) == rig.model.greedy(prompt(3), 2)

    def test_a_slot_is_released_and_reused_in_one_plan(self, rig: Any) -> None:
        rig.step([(0, 0, 9)], new=[rig.new(0, prompt(9), blocks=[5, 6, 7])], repeat=2)
        second = rig.new(0, prompt(6, 3), generation=1, blocks=[7, 5])
        rig.step([(0, 0, 6)], new=[second], released=[0], repeat=3)
        assert rig.tokens(1000) == rig.model.greedy(prompt(9), 2)
        assert rig.tokens(1001) == rig.model.greedy(prompt(6, 3), 3)

    def test_a_free_slot_is_finished_on_the_device(self, rig: Any) -> None:
        rig.step([(0, 0, 3), (1, 0, 3)], new=[rig.new(0, prompt(3)), rig.new(1, prompt(3))])
        assert rig.states.finished[:3].tolist() == [False, False, True]
        rig.step([], released=[0])
        assert rig.states.finished[:3].tolist() == [True, False, True]

    def test_decode_rows_and_prefill_rows_may_be_mixed_in_any_order(self, rig: Any) -> None:
        rig.step([(0, 0, 5)], new=[rig.new(0, prompt(5))])
        rig.step([(1, 0, 7)], new=[rig.new(1, prompt(7, 1))])
        rig.step(
            [(2, 0, 6), (1,), (3, 0, 2), (0,)],
            new=[rig.new(2, prompt(6, 2)), rig.new(3, prompt(2, 3))],
            repeat=2,
        )
        for slot, seed, length, num_new in ((0, 0, 5, 3), (1, 1, 7, 3), (2, 2, 6, 2), (3, 3, 2, 2)):
            assert rig.tokens(1000 + 10 * slot) == rig.model.greedy(prompt(length, seed), num_new)

    def test_a_missing_plan_ends_the_worker(self, rig: Any) -> None:
        rig.run(rig.plan([]))
        rig.plan([])
        with pytest.raises(InvariantBroken, match="plan 2 follows plan 0"):
            rig.run(rig.plan([]))

    def test_shutdown_ends_the_loop(self, rig: Any) -> None:
        rig.worker.on_message(Shutdown(), 0)
        assert rig.worker.finished

    @pytest.mark.parametrize("rows", [[(0, 2, 5)], [(0, 0, 6)]], ids=["gap", "beyond the end"])
    def test_impossible_rows_end_the_worker(self, rig: Any, rows: list[tuple[int, ...]]) -> None:
        with pytest.raises(InvariantBroken, match="plan 0 prefills"):
            rig.step(rows, new=[rig.new(0, prompt(5))])

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"slot": 0, "token_ids": [1], "num_computed": 1}, "1 of 1 tokens computed"),
            ({"slot": 0, "token_ids": [1] * 64}, "at most 64"),
            ({"slot": 0, "token_ids": [1, 2], "num_prompt": 3}, "3 prompt tokens of 2"),
            ({"slot": 0, "token_ids": [1], "blocks": [100]}, "pool of 100"),
            ({"slot": 0, "token_ids": [1], "blocks": list(range(17))}, "more than 16 blocks"),
        ],
    )
    def test_impossible_sequences_end_the_worker(
        self, rig: Any, fields: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(InvariantBroken, match=message):
            rig.step([], new=[rig.new(**fields)])

    def test_a_slot_has_one_tenant(self, rig: Any) -> None:
        rig.step([], new=[rig.new(0, [1])])
        with pytest.raises(InvariantBroken, match="belongs to sequence 1000"):
            rig.step([], new=[rig.new(0, [1], generation=1)])


class TestSequences:
    @pytest.mark.parametrize("chunk", [1, 2, 3, 4, 7, 16, 40])
    def test_chunked_prefill_equals_prefill_at_once(self, rig: Any, chunk: int) -> None:
        tokens = prompt(33)
        new = [rig.new(0, tokens)]
        for start in range(0, 33, chunk):
            (output,) = rig.step([(0, start, min(start + chunk, 33))], new=new)
            assert bool(output.slots) == (start + chunk >= 33)
            new = []
        rig.step([(0,)], repeat=10)
        assert rig.tokens(1000) == rig.model.greedy(tokens, 11)

    def test_batched_equals_alone(self, rig: Any) -> None:
        prompts = [prompt(length, length) for length in (1, 4, 5, 16, 23, 2)]
        for slot, tokens in enumerate(prompts):
            rows = [(earlier,) for earlier in range(slot)] + [(slot, 0, len(tokens))]
            rig.step(rows, new=[rig.new(slot, tokens)], repeat=2)
        rig.step([(slot,) for slot in (3, 1, 5, 0, 2, 4)], repeat=8)
        for slot, tokens in enumerate(prompts):
            answer = rig.tokens(1000 + 10 * slot)
            assert len(answer) == 2 * (len(prompts) - slot) + 8
            assert answer == rig.model.greedy(tokens, len(answer))

    def test_a_prefix_of_other_sequences_blocks_is_read(self, rig: Any) -> None:
        tokens = prompt(14)
        rig.step([(0, 0, 14)], new=[rig.new(0, tokens, blocks=[1, 2, 3, 4])])
        longer = tokens[:8] + prompt(5, 9)
        rig.step([(1, 8, 13)], new=[rig.new(1, longer, num_computed=8, blocks=[1, 2, 7, 8])])
        rig.step([(1,), (0,)])
        assert rig.tokens(1010) == rig.model.greedy(longer, 2)
        assert rig.tokens(1000) == rig.model.greedy(tokens, 2)

    def test_a_prefix_up_to_the_last_token_may_start_with_decode(self, rig: Any) -> None:
        tokens = prompt(9)
        rig.step([(0, 0, 9)], new=[rig.new(0, tokens, blocks=[1, 2, 3])])
        rig.step([(1,)], new=[rig.new(1, tokens, num_computed=8, blocks=[1, 2, 5])], repeat=3)
        assert rig.tokens(1010) == rig.model.greedy(tokens, 3)

    def test_a_resumed_sequence_goes_on_where_it_was(self, rig: Any) -> None:
        tokens = prompt(6)
        whole = rig.model.greedy(tokens, 12)
        resumed = rig.new(0, tokens + whole[:5], num_prompt=6, max_tokens=12)
        rig.step([(0, 0, 11)], new=[resumed], repeat=20)
        assert rig.tokens(1000) == whole[5:]
        assert rows_of(rig.outputs[0])[0][1] == 11
        assert rows_of(rig.outputs[-1])[0][3] == FINISH_LENGTH

    def test_appended_blocks_give_room(self, rig: Any) -> None:
        tokens = prompt(6)
        new = rig.new(0, tokens, blocks=[50, 40])
        outputs = rig.step([(0, 0, 6)], new=[new], repeat=30)
        assert len(outputs) == 3  # positions 6, 7 and, sampled but not yet computed, 8
        assert rows_of(rig.step([(0,)])[0]) == []
        rig.step([(0,)], appends=[(0, 30), (0, 20)], repeat=30)
        assert rig.tokens(1000) == rig.model.greedy(tokens, 3 + 8)

    def test_blocks_of_many_slots_are_appended_in_order(self, rig: Any) -> None:
        prompts = {slot: prompt(3, slot) for slot in range(3)}
        new = [rig.new(slot, prompts[slot], blocks=[slot]) for slot in prompts]
        rig.step(
            [(slot, 0, 3) for slot in prompts],
            new=new,
            appends=[(2, 10), (0, 11), (2, 12), (1, 13), (2, 14), (0, 15)],
            repeat=50,
        )
        for slot, num_blocks in ((0, 3), (1, 2), (2, 4)):
            num_new = num_blocks * BLOCK_SIZE - 3 + 1
            assert rig.tokens(1000 + 10 * slot) == rig.model.greedy(prompts[slot], num_new)

    def test_masked_rows_write_nothing(self, rig: Any) -> None:
        new = [rig.new(0, prompt(4), max_tokens=2, blocks=[3, 4]), rig.new(1, prompt(4, 1))]
        rig.step([(0, 0, 4), (1, 0, 4)], new=new, repeat=2)
        before = rig.kv_cache.tensor[[3, 4]].clone()
        computed = rig.states.num_computed[0].item()
        rig.step([(0,), (1,)], repeat=6)
        assert torch.equal(rig.kv_cache.tensor[[3, 4]].nan_to_num(7.0), before.nan_to_num(7.0))
        assert rig.states.num_computed[0].item() == computed
        assert rig.tokens(1010) == rig.model.greedy(prompt(4, 1), 8)


class TestFinish:
    def test_a_stop_id_ends_a_sequence_and_is_answered(self, rig: Any) -> None:
        tokens = prompt(5)
        answer = rig.model.greedy(tokens, 10)
        stop = answer[6]
        length = answer.index(stop) + 1
        rig.step([(0, 0, 5)], new=[rig.new(0, tokens, stop_token_ids=[91, stop])], repeat=64)
        assert rig.tokens(1000) == answer[:length]
        assert [rows_of(o)[0][3] for o in rig.outputs] == [FINISH_NONE] * (length - 1) + [
            FINISH_STOP
        ]

    def test_min_tokens_hold_back_stop_ids(self, rig: Any) -> None:
        tokens = prompt(5)
        stop = rig.model.greedy(tokens, 1)[0]
        new = rig.new(0, tokens, stop_token_ids=[stop], min_tokens=4, max_tokens=6)
        rig.step([(0, 0, 5)], new=[new], repeat=64)
        assert stop not in rig.tokens(1000)[:4]
        assert len(rig.tokens(1000)) >= 4

    @pytest.mark.parametrize("max_tokens", [1, 2, 7])
    def test_the_token_budget_ends_a_sequence(self, rig: Any, max_tokens: int) -> None:
        new = rig.new(0, prompt(5), max_tokens=max_tokens)
        outputs = rig.step([(0, 0, 5)], new=[new], repeat=64)
        finish = [rows_of(o)[0][3] for o in outputs]
        assert finish == [FINISH_NONE] * (max_tokens - 1) + [FINISH_LENGTH]

    def test_the_longest_sequence_ends_at_max_model_len(self, rig: Any) -> None:
        tokens = prompt(60)
        rig.step([(0, 0, 60)], new=[rig.new(0, tokens)], repeat=64)
        assert rig.tokens(1000) == rig.model.greedy(tokens, MAX_MODEL_LEN - 60)
        assert rows_of(rig.outputs[-1])[0][3] == FINISH_LENGTH

    def test_a_stop_id_wins_over_the_budget(self, rig: Any) -> None:
        stop = rig.model.greedy(prompt(5), 1)[0]
        new = rig.new(0, prompt(5), max_tokens=1, stop_token_ids=[stop])
        (output,) = rig.step([(0, 0, 5)], new=[new])
        assert rows_of(output)[0][3] == FINISH_STOP

    def test_logits_that_are_not_finite_end_their_row_alone(self, rig: Any) -> None:
        good, bad = prompt(7), [*prompt(6, 1), POISON]
        rig.step(
            [(0, 0, 7), (1, 0, 7)], new=[rig.new(0, good), rig.new(1, bad, logprobs=2)], repeat=4
        )
        first = rig.outputs[0]
        assert rows_of(first) == [
            (0, 7, rig.model.greedy(good, 1), FINISH_NONE),
            (1, 0, [], FINISH_ERROR),
        ]
        assert list(first.errors) == [1]
        assert "not finite" in first.errors[1]
        assert first.logprobs is None
        assert all(unpack_ids(o.slots) == [0] for o in rig.outputs[1:])
        assert rig.tokens(1000) == rig.model.greedy(good, 4)

    def test_blocks_of_a_row_that_failed_may_be_reused(self, rig: Any) -> None:
        rig.step([(1, 0, 7)], new=[rig.new(1, [POISON] * 7, blocks=[3, 4])])
        rig.step(
            [(1, 0, 2)],
            new=[rig.new(1, prompt(2), generation=1, blocks=[4, 3])],
            released=[1],
            repeat=5,
        )
        assert rig.tokens(1011) == rig.model.greedy(prompt(2), 5)


class TestLogprobs:
    def test_logprobs_name_their_rows(self, rig: Any) -> None:
        prompts = [prompt(5, slot) for slot in range(4)]
        wanted = [None, 3, 0, 1]
        new = [rig.new(s, prompts[s], logprobs=wanted[s], max_tokens=9) for s in range(4)]
        rig.step([(slot, 0, 5) for slot in range(4)], new=new)
        (output,) = rig.outputs
        found = output.logprobs
        assert found is not None
        assert found.num_top == 3
        assert sorted(unpack_ids(found.rows)) == [1, 2, 3]
        ids = np.frombuffer(found.token_ids, np.int32).reshape(3, 4)
        values = np.frombuffer(found.logprobs, np.float32).reshape(3, 4)
        for index, row in enumerate(unpack_ids(found.rows)):
            slot = unpack_ids(output.slots)[row]
            expected = rig.model.logits(prompts[slot])[-1].log_softmax(-1)
            num_top = wanted[slot]
            assert num_top is not None
            assert ids[index, 0] == expected.argmax()
            best = expected.topk(num_top + 1)
            np.testing.assert_allclose(values[index, 0], best.values[0], atol=1e-4)
            assert ids[index, 1 : 1 + num_top].tolist() == best.indices[:num_top].tolist()
        assert unpack_ids(found.ranks) == [1, 1, 1]

    @pytest.mark.parametrize("chunk", [3, 8, 20])
    def test_prompt_logprobs_do_not_depend_on_chunks(
        self, rig: Any, chunk: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tokens = prompt(20)
        processor = rig.worker._output_processor
        monkeypatch.setattr(processor, "_prompt_chunk", 4)
        new = [rig.new(0, tokens, prompt_logprobs=2), rig.new(1, prompt(3))]
        other: list[tuple[int, ...]] = [(1, 0, 3)]
        for start in range(0, 20, chunk):
            rig.step([*other, (0, start, min(start + chunk, 20))], new=new)
            new, other = [], [(1,)]
        rig.step([(0,), (1,)])
        messages = [m for output in rig.outputs for m in output.prompt_logprobs]
        assert {message.sequence_id for message in messages} == {1000}
        assert max(rig.model.num_logit_rows) <= 4
        expected = rig.model.logits(tokens).log_softmax(-1)
        position = 1
        for message in messages:
            assert message.start == position
            values = np.frombuffer(message.logprobs, np.float32).reshape(-1, 3)
            ids = np.frombuffer(message.token_ids, np.int32).reshape(-1, 3)
            for row, rank in enumerate(unpack_ids(message.ranks)):
                own = expected[position - 1, tokens[position]]
                assert ids[row, 0] == tokens[position]
                np.testing.assert_allclose(values[row, 0], own, atol=1e-4)
                assert rank == 1 + (expected[position - 1] > own).sum()
                assert ids[row, 1:].tolist() == expected[position - 1].topk(2).indices.tolist()
                position += 1
        assert position == 20


class TestRunAhead:
    def test_two_steps_are_launched_before_one_is_collected(self, make_rig: Any) -> None:
        rig = make_rig(steps_in_flight=2)
        rig.worker.on_message(rig.plan([(0, 0, 4)], new=[rig.new(0, prompt(4))], repeat=3), 0)
        answered = []
        for _ in range(4):
            rig.worker.tick(0)
            answered.append(len(rig.worker.outgoing) // 2)
        assert answered == [0, 1, 2, 3]
        assert rig.worker.tick(0) is None
        rig.run_dry()
        assert rig.tokens(1000) == rig.model.greedy(prompt(4), 3)

    def test_a_turn_that_only_looks_at_the_device_is_known_as_such(
        self, make_rig: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rig = make_rig(steps_in_flight=2)
        rig.worker.on_message(rig.plan([(0, 0, 4)], new=[rig.new(0, prompt(4))]), 0)
        with monkeypatch.context() as device_that_works:
            device_that_works.setattr(PendingOutput, "is_ready", lambda self: False)
            waits = []
            for _ in range(3):
                assert rig.worker.tick(0) == 0
                waits.append(rig.worker.waits_for_device)
            assert waits == [False, True, True]
        rig.worker.tick(0)
        assert not rig.worker.waits_for_device
        assert rig.worker.tick(0) is None
        assert not rig.worker.waits_for_device

    @pytest.mark.parametrize("steps_in_flight", [2, 3])
    def test_the_next_step_of_a_grant_is_launched_before_an_answer_is_sent(
        self, make_rig: Any, steps_in_flight: int
    ) -> None:
        rig, repeat = make_rig(steps_in_flight=steps_in_flight), 12
        rig.worker.on_message(rig.plan([(0, 0, 4)], new=[rig.new(0, prompt(4))], repeat=repeat), 0)
        launched_before: list[int] = []
        while len(launched_before) < repeat:
            rig.worker.tick(0)
            num_new = len(rig.worker.outgoing) // 2 - len(launched_before)
            launched_before += [rig.worker.counters["steps"]] * num_new
        # Nobody waits longer than needed for a first token, and at the end there is nothing to launch.
        ahead = [min(step + 1 + steps_in_flight, repeat) for step in range(1, repeat)]
        assert launched_before == [steps_in_flight, *ahead]
        assert rig.tokens(1000) == []
        rig.run_dry()
        assert rig.tokens(1000) == rig.model.greedy(prompt(4), repeat)

    def test_no_answer_is_held_back_by_a_worker_that_ends(self, make_rig: Any) -> None:
        rig = make_rig(steps_in_flight=2)
        worker = rig.worker
        worker.on_message(rig.plan([(0, 0, 4)], new=[rig.new(0, prompt(4))], repeat=50), 0)
        while worker.counters["steps"] < 4:
            worker.tick(0)
        worker.outgoing.clear()
        worker.on_message(Shutdown(), 0)
        worker.tick(0)
        assert [message.step_id for _, message in worker.outgoing] == [2, 2]

    def test_an_answer_is_sent_before_another_plan_is_launched(self, make_rig: Any) -> None:
        rig = make_rig(steps_in_flight=2)
        worker = rig.worker
        worker.on_message(rig.plan([(0, 0, 4)], new=[rig.new(0, prompt(4))], repeat=50), 0)
        while worker.counters["steps"] < 4:
            worker.tick(0)
        worker.tick(0)
        assert worker.outgoing == []
        worker.on_message(rig.plan([(0,), (1, 0, 9)], new=[rig.new(1, prompt(9, 1))]), 0)
        worker.tick(0)
        assert [message.step_id for _, message in worker.outgoing] == [0, 0, 1, 1, 2, 2]
        assert worker.counters["steps"] == 4
        outputs = rig.run_dry()
        assert [o.step_id for o in outputs] == list(range(len(outputs)))
        assert rig.tokens(1000) == rig.model.greedy(prompt(4), len(outputs))
        assert rig.tokens(1010) == rig.model.greedy(prompt(9, 1), 1)

    @pytest.mark.parametrize("steps_in_flight", [2, 3, 5])
    def test_run_ahead_changes_no_token(self, make_rig: Any, steps_in_flight: int) -> None:
        rig = make_rig(steps_in_flight=steps_in_flight)
        prompts = [prompt(4 + slot, slot) for slot in range(4)]
        answers = [rig.model.greedy(tokens, 12) for tokens in prompts]
        limits = [3, 12, 5, 8]
        new = [rig.new(s, prompts[s], max_tokens=limits[s]) for s in range(3)]
        new.append(rig.new(3, prompts[3], stop_token_ids=[answers[3][7]]))
        limits[3] = answers[3].index(answers[3][7]) + 1
        outputs = rig.step([(s, 0, 4 + s) for s in range(4)], new=new, repeat=40)
        for slot in range(4):
            assert rig.tokens(1000 + 10 * slot) == answers[slot][: limits[slot]]
        ends = [(row[0], row[3]) for o in outputs for row in rows_of(o) if row[3]]
        assert sorted(ends) == [(0, 2), (1, 2), (2, 2), (3, 1)]
        # The device masks what the host does not know yet, so a few empty executions may follow the end.
        assert 12 <= len(outputs) <= 12 + steps_in_flight

    def test_a_slot_is_reused_while_its_last_steps_are_in_flight(self, make_rig: Any) -> None:
        rig = make_rig(steps_in_flight=3)
        rig.run(
            rig.plan([(0, 0, 5)], new=[rig.new(0, prompt(5), max_tokens=1)]),
            rig.plan([(0,)]),
            rig.plan([(0, 0, 3)], new=[rig.new(0, prompt(3, 1), generation=1)], released=[0]),
            rig.plan([(0,)], repeat=4),
        )
        assert rig.tokens(1000) == rig.model.greedy(prompt(5), 1)
        assert rig.tokens(1001) == rig.model.greedy(prompt(3, 1), 5)


class TestEpochs:
    def test_a_new_scheduler_finds_an_empty_table(self, rig: Any) -> None:
        rig.worker.on_message(rig.plan([(0, 0, 5)], new=[rig.new(0, prompt(5))], repeat=50), 0)
        rig.worker.tick(0)
        old = rig.plan([(0,)])
        rig.worker.on_message(PeerRestarted(actor="scheduler", epoch=2), 0)
        rig.worker.on_message(old, 0)
        assert len(rig.run_dry()) == 1
        rig.epoch, rig.next_plan_id = 2, 0
        rig.step([(0, 0, 6)], new=[rig.new(0, prompt(6, 1), generation=3)], repeat=2)
        assert rig.tokens(1003) == rig.model.greedy(prompt(6, 1), 2)

    def test_news_of_other_peers_change_nothing(self, rig: Any) -> None:
        rig.step([(0, 0, 5)], new=[rig.new(0, prompt(5))])
        rig.worker.on_message(PeerRestarted(actor="detokenizer", epoch=2), 0)
        rig.step([(0,)])
        assert rig.tokens(1000) == rig.model.greedy(prompt(5), 2)
