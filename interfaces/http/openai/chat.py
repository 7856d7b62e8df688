"""POST /v1/chat/completions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from domain.request.request import GenerationRequest
from interfaces.http.answering.collected import Collected
from interfaces.http.answering.dialect import Framing, Operation, Started
from interfaces.http.incoming.json_body import body_decoder
from interfaces.http.incoming.request_context import RequestContext
from interfaces.http.openai.chat_answer import ChatCompletion, ChatFraming, chat_completion
from interfaces.http.openai.chat_request import (
    ChatCompletionRequest,
    chat_prompt,
    max_tokens,
    num_logprobs,
    reasoning_limit,
    wire_names,
)
from interfaces.http.openai.completion_fields import completion_request
from interfaces.http.openai.unsupported_fields import IN_CHAT


class ChatCompletions(Operation[ChatCompletionRequest]):
    path = "/v1/chat/completions"
    operation_id = "createChatCompletion"
    body_type = ChatCompletionRequest
    answer_type = ChatCompletion
    discriminator = "messages"
    noun = "a chat"
    decoder = staticmethod(body_decoder(ChatCompletionRequest, IN_CHAT))

    def wire_names(self, body: ChatCompletionRequest) -> Mapping[str, str]:
        return wire_names(body)

    def convert(self, body: ChatCompletionRequest, context: RequestContext) -> list[GenerationRequest]:
        id, prompt, logprobs = context.services.ids.request_id("chatcmpl"), chat_prompt(body), num_logprobs(body)
        wanted = completion_request(
            body,
            context,
            id,
            prompt,
            max_tokens=max_tokens(body),
            num_logprobs=logprobs,
            num_prompt_logprobs=body.prompt_logprobs,
        )
        return [replace(wanted, reasoning=reasoning_limit(body))]

    def answer(self, body: ChatCompletionRequest, started: Started, choices: Sequence[Collected]) -> ChatCompletion:
        return chat_completion(body, started, choices)

    def framing(self, body: ChatCompletionRequest, started: Started) -> Framing:
        return ChatFraming(body, started)
