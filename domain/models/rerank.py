"""The prompt by which Qwen3-Reranker judges a document, byte for byte as its model card writes it.

    prefix            PREFIX, then instruction and query: the same for all documents of a request
    each document     after one space, which no tokenizer of the family joins with the colon before it
    suffix            SUFFIX: the answer begins, and its first token is "yes" or "no"

Only PREFIX and SUFFIX hold control tokens; everything else is text.
"""

PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct"
    ' provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
YES, NO = "yes", "no"

DEFAULT_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


def query_text(query: str, instruction: str | None) -> str:
    """The text between PREFIX and a document. `instruction`: None for DEFAULT_INSTRUCTION."""
    return f"<Instruct>: {DEFAULT_INSTRUCTION if instruction is None else instruction}\n<Query>: {query}\n<Document>:"
