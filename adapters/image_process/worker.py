"""The worker's end: processes one image or PDF file after the other, within limits of processor time and memory.

It holds no weights, no state of a tenant and no key: what a hostile file could take over is this. The kernel ends it
when a file takes too long; the server starts another one. Processor time is counted, so that a busy machine refuses
nothing. It ends with the server, at the end of its input.

The limit of memory holds on Linux. macOS enforces none on an address space: there the decoder's bound of pixels and the
time remain.
"""

import os
import resource
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from math import ceil
from typing import IO, Protocol

from adapters.image_process.wire import Ask, WorkerReply, read, write, write_image
from application.ports.file_reader import ReadPdf
from application.ports.vision import ImageProcessor
from application.services.faults import described
from domain.errors import DomainError, InvalidRequest
from domain.models.model_card import ModelSource
from domain.request.media import MAX_IMAGE_BYTES, Image

LOAD_CPU_S = 120
"""For importing libraries and reading a processor's files, which no client sent."""

NUM_KEPT = 4
"""Processors that are kept."""

MAX_ASK_BYTES = MAX_IMAGE_BYTES + (1 << 20)

TOO_COSTLY = "the image cannot be used: it takes too much time or memory to decode; send a smaller or simpler one"

DECODER_FAILED = "the image cannot be used: its decoder failed; send another file"

PDF_TOO_COSTLY = "the file cannot be read: it takes too much time or memory; send a smaller or simpler one, or its text"

PDF_FAILED = "the file cannot be read: its reader failed; send its text"


class LoadProcessor(Protocol):
    def __call__(self, source: ModelSource) -> ImageProcessor | None: ...


def serve(load: LoadProcessor, read_pdf: ReadPdf, cpu_s: int, memory_bytes: int) -> None:
    """Answers until the input ends. `cpu_s`: for one file. `memory_bytes`: of the address space."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    answers(load, read_pdf, sys.stdin.buffer, output, _limit, cpu_s)


def answers(
    load: LoadProcessor,
    read_pdf: ReadPdf,
    asks: IO[bytes],
    output: IO[bytes],
    limit: Callable[[int], object],
    cpu_s: int,
) -> None:
    """`limit`: limits the processor time from now on, in seconds."""
    kept: OrderedDict[int, ImageProcessor | None] = OrderedDict()
    while (ask := read(asks, Ask, MAX_ASK_BYTES)) is not None:
        try:
            if ask.source is None:
                limit(cpu_s)
                write(output, WorkerReply(pages=read_pdf(ask.data or b"")))
                continue
            if ask.number not in kept:
                limit(LOAD_CPU_S)
                kept[ask.number] = load(ask.source)
            while len(kept) > NUM_KEPT:
                kept.popitem(last=False)
            processor = kept[ask.number]
            if ask.data is None or processor is None:
                write(output, WorkerReply(placeholder=processor.placeholder if processor is not None else ""))
                continue
            limit(cpu_s)
            write_image(output, processor.process(Image(ask.data, ask.detail)))
        except InvalidRequest as error:
            write(output, WorkerReply(error.message.removeprefix("image: "), is_refused=True))
        except MemoryError:
            why = TOO_COSTLY if ask.source is not None else PDF_TOO_COSTLY
            write(output, WorkerReply(why, is_refused=ask.data is not None))
        except DomainError as error:
            write(output, WorkerReply(error.message))
        except Exception as error:
            write(output, WorkerReply(described(error)))
        del ask  # the file


def _limit(seconds: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (ceil(time.process_time() + seconds), most))
