"""The entry point of a process that decodes images, which the server starts for the first one.

The arguments are the processor time of one file, in seconds, and the bytes of its address space.
"""

import sys

from adapters.image_process.worker import serve
from adapters.image_processors.processor import ImageProcessors
from adapters.pillow.decoder import decode

if __name__ == "__main__":
    serve(ImageProcessors(decode).load, int(sys.argv[1]), int(sys.argv[2]))
