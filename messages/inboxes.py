"""What each inbox takes: one tagged union per receiver, matched exhaustively."""

from typing import Final

from pillion.messages import blocks, control, requests, steps, text
from pillion.messages.base import RingMessage

SchedulerInbox = (
    requests.NewRequest
    | requests.AbortRequest
    | steps.StepOutput
    | blocks.PrefixFound
    | blocks.BlockLease
    | blocks.RecallLease
    | control.EngineGeometry
    | control.PeerRestarted
    | control.Drain
    | control.Shutdown
)

KvManagerInbox = (
    blocks.FindPrefix
    | blocks.LeaseRequest
    | blocks.ReturnLease
    | blocks.CommitBlocks
    | blocks.ReleaseBlocks
    | blocks.HeldBlocks
    | control.EngineGeometry
    | control.PeerRestarted
    | control.Shutdown
)

WorkerInbox = steps.StepPlan | steps.TokenMasks | control.PeerRestarted | control.Shutdown

DetokenizerInbox = (
    steps.StepOutput
    | requests.RequestRejected
    | requests.RequestClosed
    | requests.RequestScheduled
    | control.EngineGeometry
    | control.PeerRestarted
    | control.Drain
    | control.EngineFailed
    | control.Shutdown
)

GatewayInbox = (
    control.EngineGeometry
    | control.PeerRestarted
    | control.Drain
    | control.EngineFailed
    | control.EngineState
    | control.Shutdown
)

LauncherInbox = (
    control.ActorReady
    | control.ActorFailed
    | control.ActorStats
    | control.StartPhase
    | control.EngineGeometry
    | control.Drained
)

# Whose epoch a message carries. The geometry is the worker's word, though the launcher passes it on.
_SPEAKERS: Final[dict[type[RingMessage], str]] = {
    steps.StepOutput: "gpu_worker",
    control.EngineGeometry: "gpu_worker",
    steps.StepPlan: "scheduler",
    steps.TokenMasks: "scheduler",  # sent by the edge, for slots that this scheduler gave
    blocks.FindPrefix: "scheduler",
    blocks.LeaseRequest: "scheduler",
    blocks.ReturnLease: "scheduler",
    blocks.CommitBlocks: "scheduler",
    blocks.ReleaseBlocks: "scheduler",
    blocks.HeldBlocks: "scheduler",
    requests.RequestRejected: "scheduler",
    requests.RequestClosed: "scheduler",
    requests.RequestScheduled: "scheduler",
    blocks.PrefixFound: "kv_manager",
    blocks.BlockLease: "kv_manager",
    blocks.RecallLease: "kv_manager",
    requests.NewRequest: "detokenizer",
    requests.AbortRequest: "detokenizer",
}


def life_in(message: RingMessage) -> tuple[str, int] | None:
    """The actor and its epoch of which a message between actors gives word; None if of none.

    An epoch that is newer than known is the first sign of that actor's new life.
    """
    if isinstance(message, control.PeerRestarted):
        return message.actor, message.epoch
    speaker = _SPEAKERS.get(type(message))
    return None if speaker is None else (speaker, message.epoch)  # type: ignore[attr-defined]


def lives_in(message: RingMessage) -> tuple[tuple[str, int], ...]:
    """All actors and epochs of which a message gives word: answers to it go to these or to later lives."""
    life = life_in(message)
    if life is None:
        return ()
    if isinstance(message, steps.StepPlan):
        return (life, ("detokenizer", message.edge_epoch))
    return (life,)


ClientToDaemon = (
    text.Hello
    | text.GenerateRequest
    | text.CancelRequest
    | text.EmbedRequest
    | text.TokenizeRequest
    | text.DetokenizeRequest
    | text.HttpSpan
)

DaemonToClient = (
    text.Welcome
    | text.GenerateChunk
    | text.RequestFailed
    | text.TokenizeReply
    | text.DetokenizeReply
    | text.EmbeddingChunk
)

ControlRequest = control.StatusRequest | control.ProbeRequest | control.StopRequest
ControlReply = (
    control.DaemonStatus | control.ProbeReply | control.StopAccepted | control.ControlFailed
)
