"""What the scheduler is told of a request: when its prompt is ready, and again in a new term."""

from msgspec.structs import replace

from pillion.actors.detokenizer.open_requests import OpenRequest
from pillion.actors.detokenizer.token_sampling import sample_seeds
from pillion.messages.codec import pack_ids
from pillion.messages.requests import NewRequest
from pillion.messages.sampling import TokenSampling


def new_request(
    request: OpenRequest,
    prompt_token_ids: list[int],
    sampling: TokenSampling,
    epoch: int,
    edge_index: int,
    worker_epoch: int,
) -> NewRequest:
    """The request in terms of tokens, with what an earlier text edge has sent of it."""
    params = request.params
    return NewRequest(
        epoch=epoch,
        edge_index=edge_index,
        request_id=request.request_id,
        client_key=request.session.client_key,
        n=params.n,
        prompt_token_ids=pack_ids(prompt_token_ids),
        produced_token_ids=_produced(request) if request.first_sent else [],
        finished=_finished(request),
        seeds=sample_seeds(params.seed, params.n),
        sampling=sampling,
        arrival_time_ns=request.arrival_ns,
        deadline_ns=request.deadline_ns,
        priority=request.priority,
        cache_salt=request.cache_salt,
        worker_epoch=worker_epoch,
    )


def request_again(request: OpenRequest, admitted: NewRequest, worker_epoch: int) -> NewRequest:
    """The request with the tokens that its client has by now."""
    return replace(
        admitted,
        produced_token_ids=_produced(request),
        finished=_finished(request),
        worker_epoch=worker_epoch,
    )


def _produced(request: OpenRequest) -> list[bytes]:
    return [sample.token_ids.tobytes() for sample in request.samples]


def _finished(request: OpenRequest) -> list[int]:
    return [sample.index for sample in request.samples if sample.finish_reason is not None]
