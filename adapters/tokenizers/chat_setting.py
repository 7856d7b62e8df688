"""One prompt's tools and template arguments, in which its messages and likely other ones are rendered.

Where the template is local, what was rendered first saves most of what is rendered then (`spliced_chat`). All of it is
let go of with the prompt.
"""

from collections.abc import Callable, Sequence
from typing import Any

from adapters.tokenizers.spliced_chat import SplicedChat
from adapters.tokenizers.template_messages import (
    Adjustments,
    Shapes,
    TemplateTraits,
    messages_for_template,
    tools_for_template,
)
from domain.chat import ChatMessage
from domain.request import ChatPrompt


class ChatSetting:
    """One thread. `names`: see `local_template`; None for a template that is not known to be local."""

    def __init__(self, apply: Callable[..., str], prompt: ChatPrompt, names: frozenset[str] | None) -> None:
        self._apply = apply
        self._prompt = prompt
        self._is_local = names is not None and names.isdisjoint(prompt.template_kwargs)
        self._chats: dict[tuple[TemplateTraits, Adjustments], tuple[Shapes, SplicedChat]] = {}

    def text_of(self, messages: Sequence[ChatMessage], traits: TemplateTraits, adjustments: Adjustments) -> str:
        """Raises whatever the template does."""
        if not self._is_local:
            return self._applied(messages_for_template(messages, traits, adjustments))
        made: tuple[Shapes, SplicedChat] = {}, SplicedChat(self._applied)
        shapes, chat = self._chats.setdefault((traits, adjustments), made)
        return chat.text_of(messages_for_template(messages, traits, adjustments, shapes))

    def _applied(self, conversation: list[dict[str, Any]]) -> str:
        return self._apply(
            conversation,
            tools=tools_for_template(self._prompt.tools),
            add_generation_prompt=not self._prompt.continues,
            **self._prompt.template_kwargs,
        )


__all__ = ("ChatSetting",)
