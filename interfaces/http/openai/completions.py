"""POST /v1/completions."""

from collections.abc import Mapping, Sequence

from domain.request.request import GenerationRequest, choice_id
from interfaces.http.answering.collected import Collected
from interfaces.http.answering.dialect import Framing, Operation, Started
from interfaces.http.incoming.json_body import body_decoder
from interfaces.http.incoming.request_context import RequestContext
from interfaces.http.openai.completion_answer import Completion, CompletionFraming, completion
from interfaces.http.openai.completion_fields import completion_request
from interfaces.http.openai.completion_request import (
    DEFAULT_MAX_TOKENS,
    CompletionRequest,
    check_combination,
    num_prompt_logprobs,
    plain_prompts,
    wire_names,
)
from interfaces.http.openai.unsupported_fields import IN_COMPLETIONS


class Completions(Operation[CompletionRequest]):
    path = "/v1/completions"
    operation_id = "createCompletion"
    body_type = CompletionRequest
    answer_type = Completion
    discriminator = "prompt"
    noun = "a text completion"
    decoder = staticmethod(body_decoder(CompletionRequest, IN_COMPLETIONS))

    def wire_names(self, body: CompletionRequest) -> Mapping[str, str]:
        return wire_names(body)

    def convert(self, body: CompletionRequest, context: RequestContext) -> list[GenerationRequest]:
        prompts = plain_prompts(body)
        check_combination(body)
        id = context.services.ids.request_id("cmpl")
        max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        ids = (choice_id(id, number * (body.n or 1)) for number in range(len(prompts)))
        return [
            completion_request(
                body,
                context,
                id,
                prompt,
                max_tokens=max_tokens,
                num_logprobs=body.logprobs,
                num_prompt_logprobs=num_prompt_logprobs(body),
            )
            for id, prompt in zip(ids, prompts, strict=True)
        ]

    def answer(self, body: CompletionRequest, started: Started, choices: Sequence[Collected]) -> Completion:
        return completion(body, started, choices)

    def framing(self, body: CompletionRequest, started: Started) -> Framing:
        return CompletionFraming(body, started)
