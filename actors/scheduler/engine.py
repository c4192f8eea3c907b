"""What the scheduler knows of one worker's life: its limits, its blocks, who runs there, and its plans."""

from dataclasses import dataclass

from pillion.actors.scheduler.block_ledger import BlockLedger
from pillion.actors.scheduler.in_flight import InFlight, SentPlan
from pillion.actors.scheduler.limits import Limits
from pillion.actors.scheduler.lookahead import Lookahead
from pillion.actors.scheduler.planner import Planner
from pillion.actors.scheduler.request_book import RequestBook
from pillion.actors.scheduler.sequence import Phase, Sequence
from pillion.actors.scheduler.step_faults import Accusation, accusation_of_all
from pillion.actors.scheduler.term import Term
from pillion.messages.blocks import BlockLease, PrefixFound, RecallLease
from pillion.messages.steps import StepOutput, StepPlan


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan to send, and who gets a slot by it."""

    message: StepPlan
    admitted: list[Sequence]


class Engine:
    """Begins when the worker has told its sizes, and ends with the worker."""

    def __init__(self, term: Term, limits: Limits, book: RequestBook, ledger: BlockLedger) -> None:
        self.limits = limits
        self.ledger = ledger
        self._in_flight = InFlight()
        self._term = term
        self._book = book
        self._lookahead = Lookahead(book)
        self._planner = Planner(limits, ledger, self._lookahead, self._in_flight)
        self._last_plan_id = 0
        self._is_fresh = True  # the next plan finds, or makes, the worker's table empty
        self._num_unsettled = 0  # turns since the KV manager was told what is due

    @property
    def num_running(self) -> int:
        """Sequences that have a slot."""
        return len(self._planner.running.sequences)

    @property
    def release_due_ns(self) -> int | None:
        """When to come again for slots that nobody waits for."""
        return self._planner.release_due_ns

    def take_preemptions(self) -> int:
        """How many were preempted since this was asked last."""
        return self._planner.take_preemptions()

    def retire(self, sequence: Sequence) -> None:
        """It has ended for its client: what it holds goes back as soon as that is safe."""
        if sequence.phase is Phase.READY:
            self._lookahead.take(sequence)
            self.ledger.release(sequence)
            sequence.phase = Phase.CLOSED
        elif sequence.phase is Phase.RUNNING:
            self._planner.running.leave(sequence)
        # MATCHING, LEAVING, LEFT: until its PrefixFound or the answer to the plan that releases it.

    # Plans.

    def plan(self, now_ns: int, edge_epoch: int) -> Planned | None:
        """The next plan that the worker should have now; it must be sent."""
        planner = self._planner
        while True:
            if planner.wants_step(now_ns):
                planned = self._draw_up(now_ns, edge_epoch)
                if planned is not None:
                    return planned
            if not planner.fill_lookahead():
                return None

    def _draw_up(self, now_ns: int, edge_epoch: int) -> Planned | None:
        drafted = self._planner.plan()
        if drafted is None:
            return None
        draft, repeat = drafted
        self._last_plan_id += 1
        message, sent = draft.build(
            self._term.epoch, self._last_plan_id, repeat, self._is_fresh, edge_epoch
        )
        self._is_fresh = False
        sent.sent_ns = now_ns
        self._in_flight.add(sent)
        return Planned(message, draft.admitted)

    def answer(self, output: StepOutput, now_ns: int) -> SentPlan:
        """The plan that this is an answer to. Raises InvariantBroken if it does not follow the one before."""
        plan = self._in_flight.answer(output.plan_id, output.execution)
        self._planner.pace.note(output.times, plan.sent_ns, now_ns)
        return plan

    def on_plan_answered(self, plan: SentPlan) -> None:
        """The plan has run once: its prefill chunks are computed and its released slots are quiet."""
        for sequence, num_tokens in plan.prefill_rows:
            if sequence.outcome == "error":
                continue
            sequence.num_computed_tokens = max(sequence.num_computed_tokens, num_tokens)
            self.ledger.commit(sequence)
            self._book.follow(sequence, self.limits.block_size_tokens)
        for sequence in plan.released:
            del self._planner.running.left[sequence]
            self._give_back(sequence)

    def begin_again(self) -> None:
        """A step has failed: nothing comes of the plans behind it, and everyone queues with what is known.

        What the step wrote lies behind the computed tokens, so no block of it is ever committed.
        """
        self._is_fresh = True
        self._in_flight.clear()
        for sequence in self._planner.abandon():
            self._give_back(sequence)

    def make_way(self) -> None:
        """Others than before may run: whoever does makes room, and goes on when its turn comes again."""
        running = self._planner.running
        for sequence in list(running.sequences.values()):
            running.leave(sequence)
        self._lookahead.put_back(self.ledger)
        self._book.sort_queue()

    def _give_back(self, sequence: Sequence) -> None:
        """Gives the blocks of a sequence without a slot back; a preempted one queues again."""
        self.ledger.release(sequence, keep_content=sequence.outcome != "error")
        if sequence.outcome is None:
            self._book.requeue(sequence)
        else:
            sequence.phase = Phase.CLOSED

    def work_in_flight(self) -> Accusation:
        """All that the worker may have been at, of which nothing has been heard."""
        limit = self.limits.steps_in_flight
        return accusation_of_all(self._in_flight.plans, limit, self._book.open)

    # The KV manager.

    def settle(self, has_planned: bool) -> bool:
        """Tells the KV manager what is due, once the worker has its plans. Returns whether to come back at once.

        A worker that is faster than this process always wants another plan; the KV manager's turn comes all the same.
        """
        self._num_unsettled += 1
        if has_planned and self._num_unsettled <= self.limits.steps_in_flight:
            return True
        self._num_unsettled = 0
        commits_left = self.ledger.commit_some()
        self._planner.reconcile_leases()
        return has_planned or commits_left

    def on_kv_message(
        self, message: PrefixFound | BlockLease | RecallLease, frees_blocks: bool
    ) -> None:
        """An answer of the KV manager, or its wish to have blocks back.

        `frees_blocks`: releases wait to be sent, of which it could not know.
        """
        match message:
            case PrefixFound():
                self._lookahead.on_prefix_found(message, self.ledger)
            case BlockLease():
                self.ledger.leases.on_lease(message)
                if frees_blocks:
                    self.ledger.leases.ask_again()
            case RecallLease():
                self.ledger.leases.on_recall(message)

    def on_new_kv_manager(self) -> None:
        """It is told what there is, and asked again what the one before has not answered."""
        self.ledger.declare([*self._planner.running.holders, *self._lookahead.ready])
        self._lookahead.ask_again(self.ledger)
