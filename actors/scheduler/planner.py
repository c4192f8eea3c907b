"""Plans steps: who runs, who is admitted, who must go, and how far the worker may run alone."""

from array import array
from typing import Final

from pillion.actors.scheduler.admission import Admission
from pillion.actors.scheduler.block_ledger import BlockLedger
from pillion.actors.scheduler.draft import Draft
from pillion.actors.scheduler.in_flight import InFlight
from pillion.actors.scheduler.limits import Limits
from pillion.actors.scheduler.lookahead import Lookahead
from pillion.actors.scheduler.pace import Pace
from pillion.actors.scheduler.preemption import Preemption
from pillion.actors.scheduler.running import Running
from pillion.actors.scheduler.sequence import Phase, Sequence
from pillion.actors.scheduler.step_budget import prefill_chunks

# Leased blocks kept while nothing runs, so that a short prompt need not wait for a lease.
IDLE_RESERVE_BLOCKS: Final = 32
# When the worker has nothing else to do, slots are released so much later: the plan of a request that follows
# at once takes the release along, and the worker is not busy with an empty plan when that request comes.
IDLE_RELEASE_NS: Final = 5_000_000


class Planner:
    """One plan is one forward pass of decode rows and prefill chunks alike, or a grant of many decode steps.

    It runs ahead of the worker, by `steps_in_flight` plans of one step or by a grant, and so plans with
    bounds: each sequence's `min_ahead` and `max_ahead` tokens are on their way. A row that turns out to be
    over, or without a block, is masked by the device.
    """

    def __init__(
        self, limits: Limits, ledger: BlockLedger, lookahead: Lookahead, in_flight: InFlight
    ) -> None:
        self.running = Running(limits)
        self.pace = Pace(limits.max_num_batched_tokens)
        self._num_preemptions = 0
        self._starving: list[Sequence] = []  # stand still for want of a block, lowest rank first
        self._limits = limits
        self._ledger = ledger
        self._leases = ledger.leases
        self._lookahead = lookahead
        self._in_flight = in_flight
        self._admission = Admission(self.running, ledger, lookahead)
        self._preemption = Preemption(self.running, self._admission, self._leases, lookahead)
        self._reserve_blocks = min(IDLE_RESERVE_BLOCKS, limits.num_blocks // 8)
        # When to come again for slots that nobody waits for; None: there are none, or an answer comes first.
        self.release_due_ns: int | None = None

    def fill_lookahead(self) -> bool:
        """Looks up who is next; but while running sequences starve, nobody else may pin any memory.

        Returns whether one of them is a candidate at once.
        """
        if not self._starving:
            return self._admission.fill_lookahead()
        if self._leases.is_short:
            self._lookahead.put_back(self._ledger)
        return False

    def wants_step(self, now_ns: int) -> bool:
        """Whether something should be sent to the worker now."""
        if self._in_flight.num_unanswered >= self._limits.steps_in_flight:
            self.release_due_ns = None
            return False
        return bool(
            self._release_is_due(now_ns)
            or self.running.prefilling
            or self._top_up_due()
            or (self._starving and self._leases.num_free)
            or self._admissible()
            or self._preemption.victims(self._starving)
        )

    def plan(self) -> tuple[Draft, int] | None:
        """The next step and how many executions it grants; None if there is nothing to do after all.

        Writes: slots, blocks and planned tokens of the sequences in the draft, so it must be sent.
        """
        running = self.running
        self._in_flight.count_ahead(running.sequences.values())
        draft = Draft()
        decodes = [
            sequence
            for sequence in running.sequences.values()
            if not sequence.is_prefilling
            and len(sequence.token_ids) + sequence.min_ahead < sequence.max_total_tokens
        ]
        fed = self._feed(decodes)
        for victim in self._preemption.victims(self._starving):
            self._num_preemptions += 1
            victim.num_preemptions += 1
            running.leave(victim)
        draft.released = running.release_leaving()
        for sequence, block_ids in fed:
            if sequence.phase is Phase.RUNNING:
                draft.append(sequence, block_ids)
        self._starving = [s for s in self._starving if s.phase is Phase.RUNNING]
        resting = set(self._starving)
        draft.decode_rows = [s for s in decodes if s.phase is Phase.RUNNING and s not in resting]
        more_prefill = self._prefill(draft)
        rows = draft.token_rows
        if draft.is_empty or not (draft.changes_rows or self._is_of_use(rows)):
            return None
        repeat = 1 if more_prefill or not rows else max(1, self._most_steps(rows))
        self._grow(draft, rows, repeat)
        return draft, repeat

    def reconcile_leases(self) -> None:
        """Asks for the blocks that the next plans need, and returns what is far beyond."""
        limits, running = self._limits, self.running
        needed = running.headroom_blocks
        needed += sum(running.missing_now(sequence) for sequence in self._starving)
        needed += sum(map(running.missing_to_start, self._lookahead.ready))
        blocks_per_grant = limits.blocks_for(limits.max_repeat) + 1
        growth = min(len(running.sequences) * blocks_per_grant, limits.num_blocks // 4)
        self._leases.reconcile(
            low=min(needed + self._reserve_blocks // 2, limits.num_blocks),
            high=min(needed + self._reserve_blocks + growth, limits.num_blocks),
        )

    def take_preemptions(self) -> int:
        """How many were preempted since this was asked last."""
        count, self._num_preemptions = self._num_preemptions, 0
        return count

    def abandon(self) -> list[Sequence]:
        """The worker is gone with its slots: returns everyone who had one."""
        self._starving.clear()
        self.release_due_ns = None
        return self.running.abandon()

    def _top_up_due(self) -> bool:
        """Whether the worker would soon run out of steps."""
        due = max(self._in_flight.newest_repeat // 2, self._limits.steps_in_flight - 1)
        return bool(self.running.sequences) and self._in_flight.num_steps_left <= due

    def _release_is_due(self, now_ns: int) -> bool:
        running = self.running
        if not running.leaving:
            self.release_due_ns = None
            return False
        if running.sequences or self._lookahead.ready or self._in_flight.num_steps_left:
            return True
        if self.release_due_ns is None:
            self.release_due_ns = now_ns + IDLE_RELEASE_NS
        return now_ns >= self.release_due_ns

    def _admissible(self) -> list[Sequence]:
        """Who can be admitted; nobody while running sequences lack blocks."""
        return [] if self._starving else self._admission.admissible()

    def _feed(self, decodes: list[Sequence]) -> list[tuple[Sequence, list["array[int]"]]]:
        """Gives each row the block without which it surely stands still, the lowest rank first.

        Returns who got which. Writes: `_starving`, those for whom there was none.
        """
        needy = [sequence for sequence in decodes if self.running.missing_now(sequence)]
        needy.sort(key=lambda sequence: sequence.rank)
        self._starving = []
        fed = []
        for place, sequence in enumerate(needy):
            num_blocks = self.running.missing_now(sequence)
            if num_blocks > self._leases.num_free:
                self._starving = needy[place:]
                break
            fed.append((sequence, self._ledger.grow(sequence, num_blocks)))
        return fed

    def _prefill(self, draft: Draft) -> bool:
        """Fills the step's budget with prefill chunks; returns whether another step could do more of it."""
        prompts = [*self.running.prefilling, *self._admissible()]
        prompts.sort(key=lambda sequence: sequence.request.priority)
        for sequence in prompts:
            if sequence.phase is Phase.READY:
                sequence.num_planned_tokens = sequence.num_computed_tokens
        sizes = [(s.request.priority, s.num_tokens - s.num_planned_tokens) for s in prompts]
        num_streams = len(draft.decode_rows)
        budget = min(
            self._limits.max_num_batched_tokens - num_streams,
            self.pace.tokens(num_streams, len(prompts)),
        )
        for sequence, num_tokens in zip(prompts, prefill_chunks(sizes, budget), strict=True):
            if num_tokens == 0:
                continue
            if sequence.phase is Phase.READY:
                self._admission.admit(sequence)
                draft.admitted.append(sequence)
            draft.prefill_rows.append((sequence, sequence.num_planned_tokens, num_tokens))
            self.running.note_planned(sequence, num_tokens)
        return bool(self.running.prefilling) or any(s.phase is Phase.READY for s in prompts)

    def _is_of_use(self, rows: list[Sequence]) -> bool:
        """Whether a new grant for the same rows would take them further than the one that they have."""
        repeats = self._in_flight.num_repeats_left
        if all(s.num_tokens + s.min_ahead + repeats >= s.max_total_tokens for s in rows):
            return False
        # Where there are no blocks for another step of every row, there may be some before the worker is dry.
        is_dry = self._in_flight.num_steps_left < self._limits.steps_in_flight
        return is_dry or self._most_steps(rows) > 0

    def _most_steps(self, rows: list[Sequence]) -> int:
        """Steps that can be granted: as many as are of use and as there are blocks for; 0 if not one."""
        limits = self._limits
        useful = max(s.max_total_tokens - len(s.token_ids) - s.min_ahead for s in rows)
        repeat = min(limits.max_repeat, useful)
        if self._leases.is_short:
            # Blocks handed out ahead cannot be taken back, so they are handed out one at a time.
            repeat = min(repeat, limits.block_size_tokens)
        while repeat and self._growth(rows, repeat) > self._leases.num_free:
            repeat //= 2
        return repeat

    def _growth(self, rows: list[Sequence], repeat: int) -> int:
        return sum(self.running.missing_for(sequence, repeat) for sequence in rows)

    def _grow(self, draft: Draft, rows: list[Sequence], repeat: int) -> None:
        """Gives the rows blocks for the whole grant, as far as there are any."""
        admitted = set(draft.admitted)
        num_free = self._leases.num_free
        for sequence in rows:
            num_blocks = min(self.running.missing_for(sequence, repeat), num_free)
            if num_blocks:
                num_free -= num_blocks
                block_ids = self._ledger.grow(sequence, num_blocks)
                if sequence not in admitted:
                    draft.append(sequence, block_ids)
