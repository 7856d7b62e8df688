"""What /v1/cache/explain, warm and clear answer."""

from msgspec import Struct

from interfaces.http.operations.explanation_body import PromptExplanation


class ExplanationBody(Struct, tag_field="object", tag="cairn.explanation"):
    """One entry a prompt: a chat has one, a text completion may have several."""

    model: str
    prompts: list[PromptExplanation]


class PromptWarmed(Struct):
    """Tokens: prompt = reused + computed. `stored_tokens`: how many of them a restart would leave, at most all but the
    last; null when nothing is persisted."""

    prompt_tokens: int
    reused_tokens: int
    computed_tokens: int
    stored_tokens: int | None


class WarmedBody(Struct, tag_field="object", tag="cairn.warmed"):
    """One entry a prompt."""

    model: str
    prompts: list[PromptWarmed]


class ClearedBody(Struct, tag_field="object", tag="cairn.cleared"):
    """Records that went: of memory; of the store and the queue in front of it, with their bytes in the store; stored
    responses and the like, with theirs. `problem`: why something may be left in the store's files, else null."""

    hot_records: int
    records: int
    bytes: int
    documents: int
    document_bytes: int
    problem: str | None
