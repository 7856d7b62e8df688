"""How a family's calls are written where a grammar holds a model to them: arguments as JSON, names before them.

    first  (mark opening NAME before_arguments ARGUMENTS closing)  between  (mark ...)  last

    Hermes    `<tool_call>` `\\n{"name": "` NAME `", "arguments": ` ARGUMENTS `}\\n</tool_call>`

Texts in which special tokens are spelled; which of those a tokenizer has, it says itself.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WrittenCalls:
    """`number`: what stands between the name and a number that counts the calls; "" where nothing counts them.

    `needs`: a special token without which a tokenizer's models do not write so. `is_marked`: a call's first piece tells
    it from any other answer. `among_text`: and from free text around it, and the models write so by themselves.
    """

    before_arguments: str
    closing: str = ""
    opening: str = ""
    mark: str = ""
    first: str = ""
    between: str = ""
    last: str = ""
    number: str = ""
    needs: str = ""
    is_marked: bool = True
    among_text: bool = True


__all__ = ("WrittenCalls",)
