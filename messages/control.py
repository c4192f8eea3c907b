"""Life and death of actors: what the launcher and the actors tell each other."""

import msgspec

from pillion.messages.base import EdgeMessage, RingMessage
from pillion.messages.ids import ErrorCode


class ActorReady(RingMessage, frozen=True):
    """The actor's inbox is bound and its loop runs."""

    actor: str
    epoch: int
    pid: int


class ActorFailed(RingMessage, frozen=True):
    """The actor is about to exit because of an error. The first of these is the cause that users see."""

    actor: str
    epoch: int
    message: str  # one line
    details: str  # a traceback
    # False: a request's doing (its step broke the device), so the restart that follows is not counted.
    spends_budget: bool = True


class HistogramCounts(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Observations by size: `counts[i]` of at most `bounds[i]` and above the bound before, the last of any size."""

    bounds: list[float]  # ascending
    counts: list[int]  # one more than bounds
    total: float  # of all values


# Counters of one kind by what they count, such as requests by the reason of their end.
Tally = dict[str, int]


class ActorStats(RingMessage, frozen=True):
    """Counters (only grow) and gauges of an actor, sent when they changed, at most once a second."""

    actor: str
    epoch: int
    counters: dict[str, int | float]
    gauges: dict[str, int | float | str]
    tallies: dict[str, Tally] = {}
    histograms: dict[str, HistogramCounts] = {}
    time_ns: int = 0  # monotonic: of two reports the later one holds


class StartPhase(RingMessage, frozen=True):
    """A phase of start-up has ended: the start-up report and the log show where the time went."""

    actor: str
    epoch: int
    phase: str  # e.g. "imports", "weights", "warm-up", "kv cache"
    duration_ms: float


class KvGroupGeometry(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One KV group: layers with the same cache shape and lifetime."""

    kind: str  # "full_attention"
    num_layers: int
    num_blocks: int
    block_size_tokens: int
    block_bytes: int


class EngineGeometry(RingMessage, frozen=True):
    """What the worker found after loading: the launcher passes it on to everyone."""

    epoch: int
    model_name: str
    architecture: str
    device: str
    dtype: str
    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_groups: list[KvGroupGeometry]
    weights_bytes: int
    kv_bytes: int
    num_parameters: int = 0
    step_read_bytes: int = 0  # of weights, that a decode step of one row reads
    workspace_bytes: int = 0  # of a largest step, on a CUDA device
    graphs_bytes: int = 0  # of the steps captured by then; a status counts those since, too
    device_bytes: int = 0  # the device's memory; 0 on the CPU


class PeerRestarted(RingMessage, frozen=True):
    """A peer lives again under a new epoch; messages with an older epoch of it are stale."""

    actor: str
    epoch: int
    # How the life before ended, if what it was doing may be to blame: a crash of its own, or a step without end.
    crash: str | None = None


class Drain(RingMessage, frozen=True):
    """Take nothing new; finish what runs until the deadline (monotonic), then end it with an error."""

    deadline_ns: int


class Drained(RingMessage, frozen=True):
    """Nothing is open at this actor any more."""

    actor: str
    epoch: int


class EngineFailed(RingMessage, frozen=True):
    """The engine is going down: end every open request with this error, at once."""

    message: str
    code: ErrorCode = "internal"  # "unavailable": it was stopped


class EngineState(RingMessage, frozen=True):
    """To the gateway, whenever it changes: why a request would wait or fail now; None: it would run."""

    not_ready: str | None = None


class Shutdown(RingMessage, frozen=True):
    """End the loop and exit with status 0."""


# The control socket of the launcher: command line and other local tools.


class StatusRequest(EdgeMessage, frozen=True):
    """Asks for a DaemonStatus.

    An actor that asks may say what it has counted itself until now: then this is in the answer and, as its next
    report can't say less, in every later one.
    """

    stats: ActorStats | None = None


class ProbeRequest(EdgeMessage, frozen=True):
    """Asks for a ProbeReply: cheap, for whoever asks every second."""


class ProbeReply(EdgeMessage, frozen=True):
    """Two answers. Alive: the daemon works or is recovering. Ready: a request would run now.

    Ready takes a forward pass of the model in the worker's current life, which each life makes as it starts.
    """

    is_live: bool
    is_ready: bool
    reason: str | None = None  # why not


class StopRequest(EdgeMessage, frozen=True):
    """Asks the daemon to stop: drain for `drain_s` (None: the configured time), 0 means at once."""

    drain_s: float | None = None


class StopAccepted(EdgeMessage, frozen=True):
    """The daemon stops; the connection is closed when it is gone."""

    pid: int


class ControlFailed(EdgeMessage, frozen=True):
    """The control request made no sense."""

    message: str


class ActorTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What all lives of an actor have counted, as far as they reported it: it never shrinks."""

    counters: dict[str, int | float] = {}
    tallies: dict[str, Tally] = {}
    histograms: dict[str, HistogramCounts] = {}


class ActorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One actor as the launcher sees it."""

    name: str
    state: str  # "starting", "running", "draining", "exited", "failed", "lost"
    pid: int | None
    epoch: int
    rss_bytes: int
    cpu_seconds: float
    counters: dict[str, int | float]
    gauges: dict[str, int | float | str]
    restarts: dict[str, int] = {}  # by how the life before ended: killed, exited, failed, hung
    last_death: str | None = None
    last_death_s_ago: float | None = None
    rates: dict[str, float] = {}  # growth of `counters` per second, between the last two reports
    totals: ActorTotals = ActorTotals()  # `counters` are those of the present life
    stamp_age_s: float | None = None  # since its loop came round last, or a step its next layer


class DaemonStatus(EdgeMessage, frozen=True):
    """Everything `pillion status` shows."""

    version: str
    name: str
    pid: int
    state: str  # "starting", "ready", "recovering", "draining", "stopping", "failed"
    model: str
    uptime_s: float
    ready_after_s: float | None
    start_phases: list[tuple[str, str, float]]  # actor, phase, milliseconds
    geometry: EngineGeometry | None
    actors: list[ActorStatus]
    failure: str | None
    not_ready: str | None = None  # why a request would wait or fail now
    ended_cpu_seconds: float = 0.0  # processor time of actors' lives that are over
