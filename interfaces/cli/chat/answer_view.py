"""An answer on the terminal while it arrives: reasoning dimmed, Markdown formatted, plain text anywhere else.

A finished block of Markdown is printed for good. The open one is drawn anew several times a second, and only as much of
its end as the screen has room for.
"""

from typing import TYPE_CHECKING

from domain.printable import plain

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

_FENCES = ("```", "~~~")


class AnswerView:
    """The view of one answer. `console`: of stdout. `finish` must be called once, also for an answer that failed."""

    def __init__(self, console: "Console") -> None:
        self._console = console
        self._is_plain = not console.is_terminal or console.is_dumb_terminal
        self._is_reasoning = False
        self._open = ""
        self._live: Live | None = None

    def show(self, text: str, is_reasoning: bool) -> None:
        """Adds a piece of the answer. Reasoning is left out where the output is for machines."""
        text = plain(text)
        if is_reasoning and not self._console.is_terminal:
            return
        if self._is_reasoning and not is_reasoning:
            self._console.print("\n")
        self._is_reasoning = is_reasoning
        if is_reasoning:
            self._console.print(text, style="dim", end="", markup=False, highlight=False, soft_wrap=True)
        elif self._is_plain:
            self._console.file.write(text)
            self._console.file.flush()
        else:
            self._format(text)

    def finish(self) -> None:
        """Prints what is left of the answer."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._open.strip():
            self._print(self._open)
        elif self._is_plain or self._is_reasoning:
            self._console.print()
        self._open = ""

    def _format(self, text: str) -> None:
        from rich.live import Live

        self._open += text
        end = end_of_blocks(self._open)
        if self._live is None:
            self._live = Live(console=self._console, get_renderable=self._tail, refresh_per_second=8, transient=True)
            self._live.start()
        if end:
            done, self._open = self._open[:end], self._open[end:]
            self._print(done)

    def _print(self, text: str) -> None:
        from rich.markdown import Markdown

        self._console.print(Markdown(text))
        self._console.print()

    def _tail(self) -> "RenderableType":
        """The end of the open block."""
        from rich.console import Group
        from rich.markdown import Markdown
        from rich.segment import Segments

        lines = self._console.render_lines(Markdown(self._open), pad=False, new_lines=True)
        return Group(*(Segments(line) for line in lines[-max(1, self._console.height - 2) :]))


def end_of_blocks(text: str) -> int:
    """The end of the last finished block of Markdown: behind a blank line that is not part of a code block, before a
    line that is not indented; 0 for none."""
    end = position = 0
    fence = ""
    is_after_blank = False
    for line in text.splitlines(keepends=True):
        stripped = line.strip()
        if fence:
            fence = "" if stripped.startswith(fence) else fence
        else:
            if stripped and is_after_blank and not line[0].isspace():
                end = position
            fence = stripped[:3] if stripped.startswith(_FENCES) else ""
        is_after_blank = not stripped and not fence
        position += len(line)
    return end
