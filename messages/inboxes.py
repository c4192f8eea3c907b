"""What each inbox takes: one tagged union per receiver, matched exhaustively."""

from pillion.messages import blocks, control, requests, steps, text

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
    | control.EngineGeometry
    | control.PeerRestarted
    | control.Shutdown
)

WorkerInbox = steps.StepPlan | control.PeerRestarted | control.Shutdown

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

ClientToDaemon = (
    text.Hello
    | text.GenerateRequest
    | text.CancelRequest
    | text.EmbedRequest
    | text.TokenizeRequest
    | text.DetokenizeRequest
)

DaemonToClient = (
    text.Welcome
    | text.GenerateChunk
    | text.RequestFailed
    | text.TokenizeReply
    | text.DetokenizeReply
    | text.EmbeddingChunk
)

ControlRequest = control.StatusRequest | control.StopRequest
ControlReply = control.DaemonStatus | control.StopAccepted | control.ControlFailed
