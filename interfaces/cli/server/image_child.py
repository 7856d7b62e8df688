"""The entry point of a process that reads images and PDF files, which the server starts for the first one.

The arguments are the processor time of one file, in seconds, and the bytes of its address space. A library is imported
with the first file that needs it: each is an extra of its own.
"""

import sys

from adapters.image_process.worker import serve
from application.ports.vision import ImageProcessor
from domain.errors import InvalidRequest
from domain.models.model_card import ModelSource

NO_PYPDF = (
    "the file cannot be read: this server lacks pypdf, which reads PDF files; send its text, or have it installed with"
    " pip install 'cairn-mlx[files]' and the server started again"
)


def load(source: ModelSource) -> ImageProcessor | None:
    from adapters.image_processors.processor import ImageProcessors
    from adapters.pillow.decoder import decode

    return ImageProcessors(decode).load(source)


def read_pdf(data: bytes) -> tuple[str, ...]:
    try:
        from adapters.pypdf import reader
    except ImportError:
        raise InvalidRequest(NO_PYPDF) from None
    return reader.read_pdf(data)


if __name__ == "__main__":
    serve(load, read_pdf, int(sys.argv[1]), int(sys.argv[2]))
