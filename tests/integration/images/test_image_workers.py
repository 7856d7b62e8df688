"""Processes that decode images: the same results, limits of time and memory, and another one for each that ended."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from httpx import Response

from adapters.fake.engine import FakeModels
from adapters.fake.options import FakeOptions
from adapters.image_process.wire import Ask, read_reply, write
from adapters.image_process.worker import LOAD_CPU_S, TOO_COSTLY, answers
from adapters.image_process.workers import PASSED, ImageWorkers, Limits
from adapters.pillow.decoder import decode
from adapters.pypdf.reader import read_pdf
from application.ports.vision import ImageProcessor
from domain.client import Client, KeyRing, key_digest
from domain.errors import InvalidRequest, ModelLoadFailed, ServerUnavailable
from domain.ids import ModelId
from domain.models.capability import GENERATES, Capability, ModelUse
from domain.models.model_card import ModelSource
from domain.request.media import Image
from interfaces.composition.engine_entry import IMAGE_CHILD
from tests.support.http.hostile_images import STRANGERS, many_scans, picture
from tests.support.http.images import SHOWING
from tests.support.http.servers.fake_service import DEFAULT_MODEL, fake_service
from tests.support.patience import PATIENCE_S
from tests.support.processes.picture_images import PictureImages, Processors

CHILD = "tests.support.processes.picture_child"
SOURCE = ModelSource(ModelId("m"), "/nowhere", use=ModelUse(GENERATES | {Capability.SEE}))
SOUND = Image(picture(), field="there")
REFUSED = f"there: {TOO_COSTLY}"

Make = Callable[..., ImageWorkers]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[ImageWorkers] = []

    def workers(**limits: float) -> ImageWorkers:
        made.append(ImageWorkers(CHILD, replace(Limits(), **limits)))
        return made[-1]

    yield workers
    for one in made:
        one.close()
        assert not one.pids, "a worker is left"


def loaded(workers: ImageWorkers) -> ImageProcessor:
    processor = workers.load(SOURCE)
    assert processor is not None
    return processor


def costly() -> Image:
    """Some 20 seconds of a processor in half a megabyte."""
    return Image(many_scans(7_000, 7_000, 5_000), field="there")


def test_a_worker_finds_what_the_processor_finds(make: Make) -> None:
    workers = make()
    processor, expected = loaded(workers), PictureImages(decode)
    assert processor.placeholder == expected.placeholder
    for size in ((96, 64), (1, 1), (900, 700)):
        image = Image(picture(size=size))
        assert processor.process(image) == expected.process(image)
    assert len(workers.pids) == 1


@pytest.fixture(scope="module")
def lasting() -> Iterator[ImageProcessor]:
    """The processor of one worker for all tests that leave it as it was."""
    workers = ImageWorkers(CHILD)
    yield loaded(workers)
    workers.close()


@pytest.mark.parametrize("name", STRANGERS)
def test_a_worker_refuses_what_the_processor_refuses(name: str, lasting: ImageProcessor) -> None:
    image, found = Image(STRANGERS[name], field="there"), list[InvalidRequest]()
    for processor in (lasting, PictureImages(decode)):
        with pytest.raises(InvalidRequest) as refused:
            processor.process(image)
        found.append(refused.value)
    ours, expected = found
    assert (ours.message, ours.param) == (expected.message, expected.param)


def test_a_file_of_many_scans_is_refused_and_its_worker_ended(make: Make) -> None:
    workers = make(cpu_s=1)
    processor, before = loaded(workers), workers.pids
    with pytest.raises(InvalidRequest) as refused:
        processor.process(costly())
    assert (refused.value.message, refused.value.param) == (REFUSED, "there")
    assert workers.pids == ()
    processor.process(SOUND)
    assert workers.pids != before


def test_each_file_has_the_whole_limit_of_time() -> None:
    asks, output, limits = BytesIO(), BytesIO(), list[int]()
    for ask in (Ask(1, SOURCE), *[Ask(1, SOURCE, SOUND.data)] * 2, Ask(2, SOURCE, SOUND.data)):
        write(asks, ask)
    asks.seek(0)
    answers(Processors(PictureImages(decode)).load, read_pdf, asks, output, limits.append, 7)
    assert limits == [LOAD_CPU_S, 7, 7, LOAD_CPU_S, 7]
    output.seek(0)
    assert [read_reply(output).image for _ in range(4)] == [None, *[PictureImages(decode).process(SOUND)] * 3]


@pytest.mark.skipif(sys.platform != "linux", reason="no other system enforces a limit of address space")
def test_a_file_that_takes_too_much_memory_is_refused(make: Make) -> None:
    workers = make(memory_bytes=500 << 20)
    processor = loaded(workers)
    with pytest.raises(InvalidRequest) as refused:
        processor.process(Image(picture(size=(7_000, 7_000), mode="RGBA"), field="there"))
    assert refused.value.message == REFUSED
    processor.process(SOUND)


def test_a_worker_that_hangs_is_killed_at_the_deadline(make: Make) -> None:
    workers = make(deadline_s=PATIENCE_S)
    processor = loaded(workers)
    (pid,) = workers.pids
    os.kill(pid, signal.SIGSTOP)
    hanging = replace(workers.limits, deadline_s=0.05)
    workers.limits = hanging
    with pytest.raises(ServerUnavailable, match="ended with signal 9"):
        processor.process(SOUND)


def test_an_idle_worker_that_was_killed_is_replaced(make: Make) -> None:
    workers = make()
    processor = loaded(workers)
    (pid,) = workers.pids
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    processor.process(SOUND)
    assert workers.pids != (pid,)


def test_calls_at_once_have_a_worker_each_and_few_stay(make: Make) -> None:
    workers = make()
    processor = loaded(workers)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: processor.process(SOUND), range(12)))
    assert found == [PictureImages(decode).process(SOUND)] * 12
    assert 1 <= len(workers.pids) <= 2


def test_nothing_begins_after_the_end(make: Make) -> None:
    workers = make()
    processor = loaded(workers)
    workers.close()
    with pytest.raises(ServerUnavailable, match="stopping"):
        processor.process(SOUND)


def test_a_processor_that_cannot_be_loaded_is_no_processor() -> None:
    workers = ImageWorkers(IMAGE_CHILD)
    try:
        assert workers.load(replace(SOURCE, use=ModelUse())) is None
        with pytest.raises(ModelLoadFailed, match="the image processor of /nowhere could not be loaded"):
            workers.load(SOURCE)
    finally:
        workers.close()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_worker_inherits_no_key(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAIRN_SERVER__API_KEY", "secret")
    workers = make()
    loaded(workers)
    (pid,) = workers.pids
    names = {line.split("=")[0] for line in Path(f"/proc/{pid}/environ").read_text().split("\0") if line}
    assert names <= PASSED | {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "HF_HUB_OFFLINE"}


@pytest.mark.parametrize("module", ["interfaces.composition.container", "interfaces.composition.token_side"])
def test_neither_side_of_the_engine_port_has_a_decoder(module: str) -> None:
    """transformers, which mlx-lm imports, looks for Pillow; no module that decodes a format is imported."""
    code = (
        f"import sys, {module}\n"
        "from interfaces.composition.backends import import_backend, models_for\n"
        "from application.settings import Settings\n"
        "models_for(Settings(), None)\n"
        f"{'token_side' in module} and import_backend('mlx')\n"
        "found = [name for name in sys.modules if name.startswith('PIL.') and name.endswith('ImagePlugin')]\n"
        "strange = ('adapters.pillow', 'adapters.image_processors', 'adapters.pypdf', 'pypdf')\n"
        "found += [name for name in sys.modules if name.startswith(strange)]\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)


def test_others_are_answered_while_the_costly_files_of_a_client_are_refused(make: Make) -> None:
    dialect, options = SHOWING["chat"], FakeOptions(images=PictureImages(decode), context_length=8_000)
    keys = KeyRing([Client(name, key_digest(name.encode())) for name in ("attacker", "other")])
    workers, files = make(cpu_s=1), [many_scans(7_000, 7_000 - number, 5_000) for number in range(2)]
    seeing = FakeModels(seeing=[DEFAULT_MODEL])
    with (
        fake_service(options, models=seeing, images=workers, keys=keys) as service,
        ThreadPoolExecutor(2) as threads,
    ):

        def ask(client: str, data: bytes) -> Response:
            headers = {"authorization": f"Bearer {client}"}
            return service.client.post(dialect.path, json=dialect.body(data, "what is it?"), headers=headers)

        late = [threads.submit(ask, "attacker", file) for file in files]
        for number in range(3):
            assert ask("other", picture(size=(96, 64 + number))).status_code == 200
        refused = [one.result(PATIENCE_S) for one in late]
        for answer in refused:
            assert answer.status_code == 400
            assert f"{dialect.field}: the image cannot be used: it takes too much time or memory" in answer.text
        assert ask("attacker", files[0]).json() == refused[0].json()
