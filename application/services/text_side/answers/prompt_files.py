"""The files of a prompt: each is replaced by its text, so that the rest of the server knows messages of text only.

A file that cannot be read is refused where the client can still take it back, in what it sends after the last answer;
elsewhere the model reads that a file was left out, as with images (`prompt_images`). PDF files are read in a lane, one
a call and one of a client at a time. Their text, or why there is none, is kept for the next turn, by salt: the time to
the first token shows no tenant which files another one has sent.
"""

import asyncio
from collections import OrderedDict
from dataclasses import replace
from weakref import WeakValueDictionary

from application.ports.file_reader import MAX_TEXT_CHARS, FileReader
from application.services.lane import OWNER, Lane
from domain.errors import FileUnreadable
from domain.request.chat import ChatMessage, Media, Role
from domain.request.file import File
from domain.request.media import left_out
from domain.request.request import ChatPrompt

NUM_THREADS = 2
MAX_PENDING = 256

MAX_KEPT_CHARS = 16_000_000
"""The most characters of texts that are kept."""

NOT_TEXT = "the file cannot be read: it is neither a PDF file nor text in UTF-8; convert it to one of them"
TOO_LONG = f"the file cannot be read: it has more than {MAX_TEXT_CHARS:,} characters; send a part of it"


class PromptFiles:
    """Event loop only; threads start with the first PDF file and end with `close`."""

    def __init__(self, reader: FileReader, max_kept_chars: int = MAX_KEPT_CHARS) -> None:
        self._reader, self._max_kept_chars = reader, max_kept_chars
        self._lane = Lane("file", NUM_THREADS, max_pending=MAX_PENDING)  # the reader bounds each call
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._kept: OrderedDict[tuple[str, bytes], tuple[str, ...] | str] = OrderedDict()  # a text: why it is refused
        self._kept_chars = 0

    async def as_text(self, prompt: ChatPrompt, salt: str) -> ChatPrompt:
        """Returns the prompt with text in place of its files. Raises FileUnreadable, naming the file, and
        ServerUnavailable where files wait for too long."""
        if not prompt.files:
            return prompt
        messages, num_answered = list[ChatMessage](), prompt.num_answered
        for at, message in enumerate(prompt.messages):
            is_refused = message.role is not Role.TOOL and at >= num_answered
            media = [await self._as_text(one, salt, is_refused=is_refused) for one in message.media]
            messages.append(message.with_media(media))
        return replace(prompt, messages=tuple(messages))

    def close(self) -> None:
        """Stops the lane and the reader without waiting; a file that is being read is dropped."""
        self._lane.close()
        self._reader.close()

    async def _as_text(self, one: Media, salt: str, *, is_refused: bool) -> Media | str:
        if not isinstance(one, File):
            return one
        try:
            return one.shown(await self._pages(one, salt) if one.is_pdf else (_text(one),))
        except FileUnreadable as error:
            if is_refused:
                raise
            return left_out("file", error.message.removeprefix(f"{one.field}: "))

    async def _pages(self, file: File, salt: str) -> tuple[str, ...]:
        key = salt, file.digest
        async with self._turns.setdefault(OWNER.get(), asyncio.Lock()):
            if (found := self._kept.get(key)) is None:
                try:
                    found = await self._lane.run(self._reader.pages, file)
                except FileUnreadable as error:
                    found = error.message.removeprefix(f"{file.field}: ")
                self._keep(key, found)
        self._kept.move_to_end(key)
        if isinstance(found, str):
            raise FileUnreadable(f"{file.field}: {found}", param=file.field)
        return found

    def _keep(self, key: tuple[str, bytes], found: tuple[str, ...] | str) -> None:
        """Keeps a text, and drops the oldest above the bound, but not the newest."""
        if key in self._kept:  # another client of the same salt was as fast
            return
        self._kept[key] = found
        self._kept_chars += _num_chars(found)
        while self._kept_chars > self._max_kept_chars and len(self._kept) > 1:
            self._kept_chars -= _num_chars(self._kept.popitem(last=False)[1])


def _num_chars(found: tuple[str, ...] | str) -> int:
    return sum(map(len, found)) + len(found)  # empty pages count as well


def _text(file: File) -> str:
    """Raises FileUnreadable."""
    try:
        text = file.data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise FileUnreadable(f"{file.field}: {NOT_TEXT}", param=file.field)
    if len(text) > MAX_TEXT_CHARS:
        raise FileUnreadable(f"{file.field}: {TOO_LONG}", param=file.field)
    return text
