"""The entry point of a worker whose processor is that of the toy model. Its arguments are those of the product's."""

import sys

from adapters.image_process.worker import serve
from adapters.pillow.decoder import decode
from adapters.pypdf.reader import read_pdf
from tests.support.processes.picture_images import PictureImages, Processors

if __name__ == "__main__":
    serve(Processors(PictureImages(decode)).load, read_pdf, int(sys.argv[1]), int(sys.argv[2]))
