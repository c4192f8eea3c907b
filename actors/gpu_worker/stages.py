"""The three stages of a worker, wired to one state table and one KV pool."""

from collections.abc import Callable
from dataclasses import dataclass

from pillion.actors.gpu_worker.block_tables import BlockTables
from pillion.actors.gpu_worker.captured_inputs import CapturedInputs
from pillion.actors.gpu_worker.cuda_graphs import GraphCapturer, GraphTable, mixed_shapes
from pillion.actors.gpu_worker.device import Device
from pillion.actors.gpu_worker.eager_inputs import EagerInputs
from pillion.actors.gpu_worker.input_preparer import InputPreparer
from pillion.actors.gpu_worker.kv_cache import KvCache
from pillion.actors.gpu_worker.late_graphs import LateGraphs
from pillion.actors.gpu_worker.limits import WorkerLimits
from pillion.actors.gpu_worker.lone_tokens import LoneTokenExecutor
from pillion.actors.gpu_worker.model_executor import Model, ModelExecutor
from pillion.actors.gpu_worker.output_processor import OutputProcessor
from pillion.actors.gpu_worker.plan_queue import PlanQueue
from pillion.actors.gpu_worker.request_states import RequestStates
from pillion.actors.gpu_worker.sampling.sampler import Sampler
from pillion.actors.gpu_worker.step_faults import FailedSteps
from pillion.actors.gpu_worker.step_pipeline import StepPipeline
from pillion.actors.gpu_worker.worker import Worker


@dataclass(frozen=True, slots=True)
class Stages:
    """What a Worker drives. It holds no plans, so several workers may use it one after the other."""

    device: Device
    states: RequestStates
    input_preparer: InputPreparer
    executor: ModelExecutor
    output_processor: OutputProcessor
    # captures steps; None on the CPU, and where the tables are only for a probe
    capturer: GraphCapturer | None
    kv_cache: KvCache
    # of the worker that serves, on a device where steps are captured
    late_graphs: LateGraphs | None = None

    @classmethod
    def build(
        cls,
        device: Device,
        model: Model,
        vocab_size: int,
        kv_cache: KvCache,
        limits: WorkerLimits,
        *,
        graphs_for_weights: int | None = None,
        batch_invariant: bool = False,
        steps_in_flight: int = 2,
    ) -> "Stages":
        """Empty tables for this many sequences, and the stages around them.

        `graphs_for_weights`: how many weights the model has, if steps are to be captured. `batch_invariant`:
        each token is computed alone. `steps_in_flight`: of the workers that use captured steps, at most.
        """
        states = RequestStates(device, limits.max_num_seqs, limits.max_model_len)
        blocks = BlockTables(
            device,
            limits.max_num_seqs,
            limits.max_model_len,
            kv_cache.block_size,
            kv_cache.num_blocks,
        )
        executor = (LoneTokenExecutor if batch_invariant else ModelExecutor)(model, kv_cache)
        # The state table's scratch row may appear in padded batches, so the sampler knows it too.
        sampler = Sampler(
            vocab_size,
            limits.max_num_seqs + 1,
            limits.max_model_len,
            device.device,
            upload=device.upload,
        )
        graphs = GraphTable()
        eager = EagerInputs(device, states, blocks, kv_cache, graphs)
        captured = CapturedInputs(device, states, blocks)
        input_preparer = InputPreparer(device, states, blocks, graphs, eager, captured)
        capturer = None
        if graphs_for_weights is not None:
            shapes = mixed_shapes(
                limits.max_num_seqs, limits.max_num_batched_tokens, graphs_for_weights
            )
            capturer = GraphCapturer(
                states, eager, captured, executor, graphs, shapes, sampler, steps_in_flight
            )
        return cls(
            device=device,
            states=states,
            input_preparer=input_preparer,
            executor=executor,
            output_processor=OutputProcessor(
                device, states, sampler, executor.compute_logits, vocab_size
            ),
            capturer=capturer,
            kv_cache=kv_cache,
        )

    def worker(
        self,
        epoch: int,
        steps_in_flight: int,
        self_test: Callable[[], str | None] | None = None,
        late_graphs: LateGraphs | None = None,
    ) -> Worker:
        """A worker without plans; with `late_graphs` it captures them between steps.

        On the CPU a launch returns when the step is done, so nothing is in flight.
        """
        plans = PlanQueue()
        steps = StepPipeline(
            epoch,
            self.device,
            self.states,
            self.input_preparer,
            self.executor,
            self.output_processor,
            FailedSteps(self_test),
            on_failed=plans.await_fresh,
            late_graphs=late_graphs,
        )
        if not self.device.is_cuda:
            steps_in_flight = 1
        return Worker(plans, steps, self.output_processor, steps_in_flight, late_graphs)
