"""The scheduler: the truth of every request, from admission to its end. No socket and no clock inside."""

from collections.abc import Mapping
from typing import Final, assert_never

from pillion.actors.scheduler.block_ledger import BlockLedger
from pillion.actors.scheduler.counters import PREEMPTIONS, Counters, Gauges, new_counters
from pillion.actors.scheduler.edge_reports import EdgeReports
from pillion.actors.scheduler.engine import Engine
from pillion.actors.scheduler.in_flight import SentPlan
from pillion.actors.scheduler.kv_mail import KvMail
from pillion.actors.scheduler.limits import Limits
from pillion.actors.scheduler.request_book import TOKEN_BYTES, RequestBook, find_fault
from pillion.actors.scheduler.rows import take_rows
from pillion.actors.scheduler.sequence import Request, Sequence
from pillion.actors.scheduler.step_faults import StepFaults, accusation_of_step
from pillion.actors.scheduler.term import Term
from pillion.messages.base import RingMessage
from pillion.messages.blocks import BlockLease, PrefixFound, RecallLease
from pillion.messages.codec import unpack_int64
from pillion.messages.control import Drain, EngineGeometry, PeerRestarted, Shutdown
from pillion.messages.ids import ErrorCode, FinishReason, RequestId
from pillion.messages.inboxes import SchedulerInbox
from pillion.messages.requests import AbortRequest, NewRequest
from pillion.messages.steps import StepFailure, StepOutput
from pillion.runtime.config import EngineConfig
from pillion.runtime.errors import InvariantBroken
from pillion.runtime.histogram import Histogram
from pillion.runtime.lives import Lives

# The edge ends its requests at the deadline of a drain, and says why; what it has left is ended here.
EDGE_FIRST_NS: Final = 250_000_000
STOPPING: Final = "the daemon is stopping"
OUT_OF_TIME: Final = "the request's deadline has passed"


class Scheduler:
    """The pure core of the actor. `tick` plans when all messages that were there have been seen.

    A sequence ends for its client when its outcome is known, and for the engine when its slot and blocks
    are back. Each happens exactly once, in whatever order the messages of different senders arrive.

    A new worker makes this a new scheduler: it knows no request, until the text edge has sent all that are
    open again, and no block. A new KV manager is told what there is, and nothing stands still for it.
    """

    def __init__(
        self, epoch: int, config: EngineConfig, peer_epochs: Mapping[str, int] | None = None
    ) -> None:
        self.outgoing: list[tuple[str, RingMessage]] = []
        self.finished = False
        self.counters: Counters = new_counters()
        self.gauges: Gauges = {}
        self.histograms = {"preemptions": Histogram(PREEMPTIONS)}
        self._epoch = epoch
        self._config = config
        self._lives = Lives(peer_epochs)
        self._faults = StepFaults()
        self._drain_ns: int | None = None
        self._kv_mail = KvMail(self.outgoing)
        self._begin_term()

    def on_message(self, message: SchedulerInbox, now_ns: int) -> None:
        """Takes one message. Raises InvariantBroken, with the values, for one that contradicts the books."""
        if self._lives.is_stale(message):
            return
        begun = self._lives.begun_by(message)
        if begun is not None:
            self._on_new_life(begun)
        match message:
            case StepOutput():
                if message.plan_epoch == self._epoch:
                    self._on_step_output(message, now_ns)
            case NewRequest():
                self._on_new_request(message)
            case AbortRequest():
                self._on_abort(message)
            case PrefixFound() | BlockLease() | RecallLease():
                if message.worker_epoch == self._term.worker_epoch:
                    self._engine_now().on_kv_message(message, self._kv_mail.frees_blocks)
            case EngineGeometry():
                self._on_geometry(message)
            case PeerRestarted():
                if message.actor == "gpu_worker":
                    self._faults.on_worker_restarted(message.crash)
                    self._end_convicted()
            case Drain():
                self._drain_ns = message.deadline_ns + EDGE_FIRST_NS
            case Shutdown():
                self.finished = True
            case _:
                assert_never(message)

    def tick(self, now_ns: int) -> int | None:
        """Ends what is out of time, plans, and settles with the KV manager. Returns when to come again.

        One plan a turn, so that it is on its way before the next one is thought of.
        """
        deadlines = self._book.deadlines
        while (request := deadlines.due(now_ns)) is not None:
            for sequence in list(request.open_sequences):
                self._close(sequence, "timeout", OUT_OF_TIME)
        if self._drain_ns is not None:
            self._drain(now_ns, self._drain_ns)
        engine, is_busy = self._engine, False
        if engine is not None:
            if self._faults.next_trial(self._book.open):
                engine.make_way()
            has_planned = self._plan(engine, now_ns)
            # The plan first: the worker waits for it, the others do not wait for what is behind.
            self.outgoing.sort(key=lambda entry: entry[0] != "gpu_worker")
            is_busy = engine.settle(has_planned)
            self._kv_mail.leave_if_due(now_ns)
        if is_busy:
            return now_ns
        self._measure()
        due_ns = [deadlines.next_ns(), self._kv_mail.due_ns]
        if engine is not None:
            due_ns.append(engine.release_due_ns)
        if self._book.open:
            due_ns.append(self._drain_ns)
        return min((due for due in due_ns if due is not None), default=None)

    def _begin_term(self) -> None:
        """Begins with empty books: this scheduler is new, or the worker is."""
        self._term = Term(self._epoch, self._lives["gpu_worker"])
        self._reports = EdgeReports(self._term, self.outgoing)
        self._book = RequestBook(self._config.enable_prefix_caching, self._faults)
        self._engine: Engine | None = None
        self._kv_mail.drop()

    def _on_new_life(self, actor: str) -> None:
        match actor:
            case "gpu_worker":
                self.counters["forgotten"] += len(self._book.open)
                if self._engine is not None:
                    self._faults.on_worker_lost(self._engine.work_in_flight())
                self._begin_term()
            case "kv_manager" if self._engine is not None:
                self._kv_mail.drop()  # what was meant for the one before
                self._engine.on_new_kv_manager()
            case "detokenizer":
                # Nobody waits for these any more; the new edge sends again what a client takes up again.
                for sequence in list(self._book.open.values()):
                    self._retire(sequence, "abort")

    def _on_new_request(self, message: NewRequest) -> None:
        if self._lives.adopt("gpu_worker", message.worker_epoch):
            self._on_new_life("gpu_worker")
        elif message.worker_epoch < self._term.worker_epoch:
            return  # it comes again as soon as the edge has heard of the new worker
        fault = find_fault(message)
        if fault is not None:
            self._reject(message.request_id, max(1, message.n), "internal", fault)
            return
        refusal = None
        if self._engine is not None:
            num_prompt_tokens = len(message.prompt_token_ids) // TOKEN_BYTES
            refusal = self._engine.limits.refusal(num_prompt_tokens, message.sampling.max_tokens)
        if refusal is not None:
            self._reject(message.request_id, message.n, "invalid_request", refusal)
            return
        request = self._book.accept(message)
        if request is not None:
            self.counters["received"] += len(request.open_sequences)
            if self._engine is not None:
                self._bound(request, self._engine.limits)
            self._end_convicted()

    def _reject(
        self, request_id: RequestId, num_samples: int, code: ErrorCode, message: str
    ) -> None:
        self.counters["received"] += num_samples
        self.counters["rejected"] += num_samples
        self._reports.rejected(request_id, code, message)

    def _bound(self, request: Request, limits: Limits) -> None:
        """Ends samples that came as long as they may get."""
        for sequence in list(request.open_sequences):
            sequence.max_total_tokens = limits.total_tokens(
                request.num_prompt_tokens, sequence.sampling.max_tokens
            )
            if sequence.num_tokens >= sequence.max_total_tokens:
                self._close(sequence, "length")

    def _on_abort(self, message: AbortRequest) -> None:
        for sequence_id in message.sequence_ids:
            sequence = self._book.open.get(sequence_id)
            if sequence is not None:
                self._retire(sequence, message.reason)

    def _close(self, sequence: Sequence, outcome: FinishReason, message: str | None = None) -> None:
        """Ends a sequence for a reason that the text edge does not know yet."""
        self._reports.closed(sequence, outcome, message)
        self._retire(sequence, outcome)

    def _retire(self, sequence: Sequence, outcome: FinishReason) -> None:
        """Ends a sequence for its client; what it holds goes back as soon as that is safe."""
        self.counters[f"finished_{outcome}"] += 1
        self.histograms["preemptions"].observe(sequence.num_preemptions)
        self._book.retire(sequence, outcome)
        if self._engine is not None:
            self._engine.retire(sequence)

    def _on_geometry(self, message: EngineGeometry) -> None:
        if self._engine is not None:
            return
        limits = Limits.of(self._config, message)
        ledger = BlockLedger(self._term, limits, self._kv_mail.add)
        self._engine = Engine(self._term, limits, self._book, ledger)
        for request in {sequence.request: None for sequence in self._book.open.values()}:
            refusal = limits.refusal(
                request.num_prompt_tokens, request.open_sequences[0].sampling.max_tokens
            )
            if refusal is None:
                self._bound(request, limits)
                continue
            num_samples = len(request.open_sequences)
            for sequence in list(request.open_sequences):
                self._book.retire(sequence, "error")
            self.counters["received"] -= num_samples
            self._reject(request.request_id, num_samples, "invalid_request", refusal)

    def _on_step_output(self, message: StepOutput, now_ns: int) -> None:
        engine = self._engine_now()
        plan = engine.answer(message, now_ns)
        if message.failure is not None:
            self._on_step_failed(plan, message.execution, message.failure, engine)
            return
        taken = take_rows(message, self._book.open, engine.ledger)
        self.counters["steps"] += 1
        self.counters["generated_tokens"] += taken.num_tokens
        self.counters["stale_rows"] += taken.num_stale
        for sequence, outcome in taken.ended:
            self._retire(sequence, outcome)
        if message.execution == 0:
            engine.on_plan_answered(plan)

    def _on_step_failed(
        self, plan: SentPlan, execution: int, failure: StepFailure, engine: Engine
    ) -> None:
        self.counters["failed_steps"] += 1
        suspects = unpack_int64(failure.sequence_ids)
        accusation = accusation_of_step(suspects, plan, execution, self._book.open)
        self._faults.accuse(accusation, failure.message, worker_ended=failure.device_lost)
        self._end_convicted()
        if (
            not failure.device_lost
        ):  # with the device, the worker is; the next one's first sign follows
            engine.begin_again()

    def _end_convicted(self) -> None:
        for sequence, reason in self._faults.take_convicted(self._book.open):
            self._close(sequence, "error", reason)

    def _plan(self, engine: Engine, now_ns: int) -> bool:
        """Leaves the next plan that the worker should have now. Returns whether there is one."""
        planned = engine.plan(now_ns, self._lives["detokenizer"])
        if planned is None:
            return False
        for sequence in planned.admitted:
            if not sequence.was_scheduled or sequence.sampling.needs_masks:
                self._announce(sequence, now_ns)
        self.counters["plans"] += 1
        self.outgoing.append(("gpu_worker", planned.message))
        return True

    def _announce(self, sequence: Sequence, now_ns: int) -> None:
        cached = min(sequence.num_computed_tokens, sequence.request.num_prompt_tokens)
        if not sequence.was_scheduled:
            sequence.was_scheduled = True
            self.counters["prompt_tokens"] += sequence.request.num_prompt_tokens
            self.counters["cached_prompt_tokens"] += cached
        self._reports.scheduled(sequence, cached, now_ns)

    def _drain(self, now_ns: int, deadline_ns: int) -> None:
        if now_ns >= deadline_ns:
            for sequence in list(self._book.open.values()):
                self._close(sequence, "error", STOPPING)

    def _measure(self) -> None:
        num_open = len(self._book.open)
        num_running = num_leased = 0
        if self._engine is not None:
            num_running = self._engine.num_running
            num_leased = self._engine.ledger.leases.num_leased
            self.counters["preemptions"] += self._engine.take_preemptions()
        self.gauges["open"] = num_open
        self.gauges["running"] = num_running
        self.gauges["waiting"] = num_open - num_running
        self.gauges["leased_blocks"] = num_leased

    def _engine_now(self) -> Engine:
        if self._engine is None:
            raise InvariantBroken("a message of the engine came before its geometry")
        return self._engine
