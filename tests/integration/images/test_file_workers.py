"""Processes that read PDF files: the same text, limits of time and memory, and a server without the library."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from adapters.image_process.worker import PDF_TOO_COSTLY
from adapters.image_process.workers import ImageWorkers, Limits
from domain.errors import FileUnreadable
from domain.request.file import File
from interfaces.cli.server import image_child
from interfaces.composition.engine_entry import IMAGE_CHILD
from tests.support.http.files import pdf, pdf_bomb

SOUND = File(pdf("one", "two"), field="there")

Make = Callable[..., ImageWorkers]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[ImageWorkers] = []

    def workers(**limits: float) -> ImageWorkers:
        made.append(ImageWorkers(IMAGE_CHILD, replace(Limits(), **limits)))
        return made[-1]

    yield workers
    for one in made:
        one.close()
        assert not one.pids, "a worker is left"


def refused(workers: ImageWorkers, data: bytes) -> FileUnreadable:
    with pytest.raises(FileUnreadable) as error:
        workers.pages(File(data, field="there"))
    assert error.value.param == "there"
    return error.value


def test_a_worker_reads_and_refuses_and_stays(make: Make) -> None:
    workers = make()
    assert workers.pages(SOUND) == ("one", "two")
    pids = workers.pids
    assert refused(workers, pdf("")).message.startswith("there: the file cannot be read: it has no text")
    assert workers.pages(SOUND) == ("one", "two")
    assert workers.pids == pids


def test_a_bomb_costs_its_time_and_no_more(make: Make) -> None:
    workers = make(cpu_s=1)
    assert refused(workers, pdf_bomb()).message == f"there: {PDF_TOO_COSTLY}"
    assert workers.pids == ()
    assert workers.pages(SOUND) == ("one", "two")


@pytest.mark.skipif(sys.platform != "linux", reason="no other system enforces a limit of address space")
def test_a_file_that_takes_too_much_memory_is_refused(make: Make) -> None:
    workers = make(memory_bytes=200 << 20)
    assert refused(workers, pdf_bomb()).message == f"there: {PDF_TOO_COSTLY}"
    assert workers.pages(SOUND) == ("one", "two")


def test_a_server_without_the_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pypdf", None)
    for name in [name for name in sys.modules if name.startswith("adapters.pypdf")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(Exception, match=r"pip install 'cairn-mlx\[files\]'"):
        image_child.read_pdf(SOUND.data)
