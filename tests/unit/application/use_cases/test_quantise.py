"""Quantised copies: what is refused before any work, jobs with their ends, and what may be removed."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import cast

import pytest

from adapters.fake.environment import FakeClock
from application.ports.quantiser import partial_name
from application.use_cases.models import Models
from application.use_cases.quantise import MAX_JOBS, MAX_RULES, PROCESS_BYTES, JobState, Quantise, QuantJob, QuantWish
from domain.errors import ModelLoadFailed, ModelNotFound, RequestNotFound
from domain.ids import ModelId
from domain.models.model_card import ModelSource
from domain.models.quantisation import MEASURED, Quantisation
from tests.support.engines.fake_quantiser import QUALITY, WEIGHTS, FakeQuantiser
from tests.support.engines.quantise_desk import SMALL, Desk, ListedModels, ended, names_in, refusal, run, until
from tests.support.patience import PATIENCE_S
from tests.support.telemetry.recording import RecordingEvents


def test_a_job_writes_a_copy_that_is_listed_and_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    quantiser = FakeQuantiser()
    desk = Desk(tmp_path, quantiser)

    async def work() -> None:
        order, plan = await desk.quantise.plan(SMALL, QuantWish(Quantisation(bits=6)))
        assert (order.out, plan.num_bytes) == (str(tmp_path / "Small-6bit"), 750 + 20 + 64)
        assert quantiser.orders == []
        job = await desk.started()
        assert (job.state, job.name, desk.quantise.is_being_made("Small-4bit")) == (
            JobState.RUNNING,
            "Small-4bit",
            True,
        )
        await ended(job)
        assert (job.state, job.problem) == (JobState.DONE, "")
        assert job.receipt is not None
        assert job.receipt.quality == QUALITY
        (copy,) = await desk.quantise.copies()
        assert (copy.name, copy.is_partial, copy.source, copy.quality) == ("Small-4bit", False, "Small", QUALITY)
        assert copy.num_bytes > len(WEIGHTS)
        assert await desk.quantise.remove("Small-4bit") == copy.num_bytes
        assert names_in(tmp_path) == []
        with pytest.raises(ModelNotFound):
            await desk.quantise.remove("Small-4bit")

    with caplog.at_level(logging.INFO, "cairn"):
        run(desk, work())
    assert caplog.messages == [
        "quantising org/Small as Small-4bit",
        "quantising org/Small as Small-4bit: done",
    ]
    assert desk.events.of("FaultObserved") == []


LONG = {f"*.{number}": {"bits": 8} for number in range(MAX_RULES + 1)}
REFUSED: list[tuple[str, QuantWish, str, str]] = [
    ("none", QuantWish(Quantisation()), "model", "no model 'none' here"),
    ("four", QuantWish(Quantisation()), "model", "is quantised already (Q4)"),
    ("tuned", QuantWish(Quantisation()), "model", "has an adapter"),
    ("words", QuantWish(Quantisation()), "model", "is an encoder"),
    (SMALL, QuantWish(Quantisation(), "mixed_9_9"), "recipe", "must be measured"),
    (SMALL, QuantWish(Quantisation(), "mixed_4_6", rules={"*": {"bits": 8}}), "recipe", "takes no rules"),
    (SMALL, QuantWish(Quantisation(), rules={"*": {"bits": 7}}), "recipe", "bits must be one of"),
    (SMALL, QuantWish(Quantisation(), rules={"*": "8"}), "recipe", "has no form"),
    (SMALL, QuantWish(Quantisation(), rules=LONG), "recipe", "more than 256 rules"),
    (SMALL, QuantWish(Quantisation(), "mixed_4_6", most_bytes=1 << 30), "size", "needs the recipe measured"),
    (SMALL, QuantWish(Quantisation("mxfp4", 4, 32), "mixed_4_6"), "mode", "must be affine"),
    (SMALL, QuantWish(Quantisation(), name="four"), "name", "is that of another model"),
]


@pytest.mark.parametrize(("model", "wish", "param", "why"), REFUSED)
def test_an_order_is_refused_by_its_field_before_any_work(
    tmp_path: Path, model: str, wish: QuantWish, param: str, why: str
) -> None:
    quantiser = FakeQuantiser()
    desk = Desk(tmp_path, quantiser)

    async def work() -> None:
        for method in (desk.quantise.plan, desk.quantise.start):
            field, message = await refusal(method(ModelId(model), wish))
            assert (field, why in message) == (param, True), message
        assert (quantiser.planned, quantiser.orders, desk.quantise.jobs()) == ([], [], [])

    run(desk, work())


@pytest.mark.parametrize(
    "name", ["..", ".hidden", "a/b", "/etc", "a\\b", "a\0b", "a..b", "-rf", "a b", "ä", "a\n", "x" * 97]
)
def test_a_name_cannot_leave_the_folder(tmp_path: Path, name: str) -> None:
    desk = Desk(tmp_path / "models", FakeQuantiser())

    async def work() -> None:
        assert (await refusal(desk.started(name=name)))[0] == "name"
        assert (await refusal(desk.quantise.remove(name)))[0] == "name"

    run(desk, work())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("id", "name"),
    [
        ("/models/My Model (new)..x/", "My-Model-new-x-4bit"),
        ("...", "model-4bit"),
        ("y" * 200, "y" * 91 + "-4bit"),
    ],
)
def test_the_default_name_is_one_that_models_may_have(tmp_path: Path, id: str, name: str) -> None:
    source = ModelSource(ModelId(id), "/models/one")
    assert QuantWish(Quantisation()).order(source, str(tmp_path)).out == str(tmp_path / name)


def test_a_plan_that_loses_too_much_or_has_no_room_is_refused(tmp_path: Path) -> None:
    desk = Desk(tmp_path, FakeQuantiser(step_bytes=1 << 20), ListedModels(free_bytes=PROCESS_BYTES + (1 << 20) - 1))
    full = Desk(tmp_path, FakeQuantiser(free_bytes=10))

    async def work() -> None:
        force = QuantWish(Quantisation(bits=2))
        assert (await refusal(desk.quantise.start(SMALL, force)))[0] == "bits"
        assert (await refusal(desk.quantise.start(ModelId("vectors"), QuantWish(Quantisation()))))[0] == "bits"
        param, message = await refusal(desk.started())
        assert (param, "of memory are needed" in message) == ("model", True)
        assert (await refusal(full.started()))[0] == "out"
        desk.models.free_bytes = PROCESS_BYTES + (1 << 20)
        await ended(await desk.started())

    run(desk, work())
    full.quantise.close()


def test_toys_and_a_server_without_a_folder_refuse(tmp_path: Path) -> None:
    toys = Desk(tmp_path, None)
    homeless = Quantise(FakeQuantiser(), "", cast(Models, ListedModels()), RecordingEvents(), FakeClock())

    async def work() -> None:
        assert (await refusal(toys.started()))[0] == "model"
        assert (await refusal(homeless.start(SMALL, QuantWish(Quantisation()))))[0] == "model.dirs"
        assert await homeless.copies() == []

    run(toys, work())
    homeless.close()


def test_one_copy_is_made_at_a_time_and_an_ended_job_blocks_nothing(tmp_path: Path) -> None:
    gate = Event()
    quantiser = FakeQuantiser(gate=gate)
    desk = Desk(tmp_path, quantiser)

    async def work() -> None:
        first = await desk.started()
        await until(lambda: first.progress.done > 0)
        for again in (desk.started(), desk.started(name="other"), desk.quantise.plan(SMALL, first.wish)):
            assert "Small-4bit is being made" in (await refusal(again))[1]
        assert "cancel that first" in (await refusal(desk.quantise.remove("Small-4bit")))[1]
        assert desk.quantise.cancel(first.id).state is JobState.CANCELLING
        gate.set()
        await ended(first)
        assert first.state is JobState.CANCELLED
        (left,) = await desk.quantise.copies()
        assert (left.name, left.is_partial, left.num_bytes) == ("Small-4bit", True, len(WEIGHTS))
        second = await desk.quantise.start(SMALL, first.wish)
        await ended(second)
        assert [(job.id, job.state) for job in desk.quantise.jobs()] == [(second.id, JobState.DONE)]
        assert quantiser.orders[0] == quantiser.orders[1]
        assert desk.quantise.cancel(second.id).state is JobState.DONE
        assert (await refusal(desk.started()))[0] == "name"
        with pytest.raises(RequestNotFound):
            desk.quantise.cancel(first.id)

    run(desk, work())
    assert not (tmp_path / partial_name("Small-4bit")).exists()


def test_a_plan_under_way_blocks_a_job(tmp_path: Path) -> None:
    gate = Event()
    quantiser = FakeQuantiser(plan_gate=gate)
    desk = Desk(tmp_path, quantiser)

    async def work() -> None:
        planning = asyncio.create_task(desk.quantise.plan(SMALL, QuantWish(Quantisation())))
        await until(lambda: quantiser.planned)
        assert "is being planned" in (await refusal(desk.started()))[1]
        gate.set()
        await planning
        await ended(await desk.started())

    run(desk, work())


def test_a_job_that_is_cancelled_before_it_reports_does_nothing(tmp_path: Path) -> None:
    quantiser = FakeQuantiser()
    desk = Desk(tmp_path, quantiser)

    async def work() -> None:
        job = await desk.started()
        desk.quantise.cancel(job.id)
        await ended(job)
        assert (job.state, quantiser.orders, names_in(tmp_path)) == (JobState.CANCELLED, [], [])

    run(desk, work())


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (ModelLoadFailed("the tokenizer is broken"), "the tokenizer is broken"),
        (OSError(28, "no space left"), "[Errno 28] no space left"),
        (KeyError("x"), "quantising failed: KeyError"),
    ],
)
def test_a_failure_is_told_and_counted_and_the_next_order_continues(
    tmp_path: Path, error: Exception, problem: str
) -> None:
    quantiser = FakeQuantiser(error=error)
    desk = Desk(tmp_path, quantiser)

    async def work() -> None:
        job = await desk.started()
        await ended(job)
        assert (job.state, job.problem) == (JobState.FAILED, problem)
        (fault,) = desk.events.of("FaultObserved")
        assert (fault.where, fault.message) == ("quantise", f"Small-4bit: {problem}")
        assert [copy.is_partial for copy in await desk.quantise.copies()] == [True]
        quantiser.error = None
        await ended(await desk.started())
        assert [copy.is_partial for copy in await desk.quantise.copies()] == [False]

    run(desk, work())


def test_a_measured_recipe_is_planned_by_its_job(tmp_path: Path) -> None:
    gate = Event()
    quantiser = FakeQuantiser(plan_gate=gate)
    desk = Desk(tmp_path, quantiser)
    wish = QuantWish(Quantisation(), most_bytes=6_000_000)

    async def work() -> None:
        assert (await refusal(desk.quantise.plan(SMALL, wish)))[0] == "recipe"
        job = await desk.quantise.start(SMALL, wish)
        assert (job.order.recipe, job.plan, job.name) == (MEASURED, None, "Small-5.72MiB-measured")
        gate.set()
        await ended(job)
        assert (job.state, job.plan is not None) == (JobState.DONE, True)
        desk.models.free_bytes = 0
        short = await desk.quantise.start(SMALL, replace(wish, name="short"))
        await ended(short)
        assert (short.state, "of memory are needed" in short.problem) == (JobState.FAILED, True)
        assert len(quantiser.orders) == 1

    run(desk, work())


def test_the_last_jobs_are_remembered(tmp_path: Path) -> None:
    desk = Desk(tmp_path, FakeQuantiser())

    async def work() -> None:
        for number in range(MAX_JOBS + 1):
            await ended(await desk.started(name=f"copy{number}"))
        assert [job.id for job in desk.quantise.jobs()] == list(range(MAX_JOBS + 1, 1, -1))

    run(desk, work())


def test_a_source_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    desk = Desk(tmp_path, FakeQuantiser(plan_error=ModelLoadFailed("it is quantised already (gptq)")))

    async def work() -> None:
        assert await refusal(desk.started()) == ("model", "it is quantised already (gptq)")
        assert desk.quantise.jobs() == []

    run(desk, work())


def test_models_are_listed_with_why_they_have_no_copies(tmp_path: Path) -> None:
    desk = Desk(tmp_path, FakeQuantiser())

    async def work() -> None:
        problems = {source.id: problem for source, problem in await desk.quantise.sources()}
        assert problems[SMALL] == problems[ModelId("vectors")] == ""
        assert "is quantised already (Q4)" in problems[ModelId("four")]

    run(desk, work())


def test_the_end_of_the_server_stops_a_job(tmp_path: Path) -> None:
    gate = Event()
    quantiser = FakeQuantiser(gate=gate)
    desk = Desk(tmp_path, quantiser)
    jobs: list[QuantJob] = []

    async def work() -> None:
        jobs.append(await desk.started())
        await until(lambda: jobs[0].progress.done)

    run(desk, work())
    gate.set()
    assert quantiser.ended.wait(PATIENCE_S)
    assert not (tmp_path / "Small-4bit").exists()
