"""Downloads that are interrupted, shared or impossible."""

import fcntl
import os
from pathlib import Path

import pytest

from adapters.huggingface.hub_download import look_up
from adapters.huggingface.repository import HuggingFaceRepository
from application.ports.model_repository import DownloadProgress
from domain.errors import ModelLoadFailed
from domain.ids import ModelId
from tests.support.mlx.fake_hub import fake_hub

FILES = {"config.json": b'{"model_type": "llama"}', "tokenizer.json": b"{}", "model.safetensors": b"weights"}


def repository_of(tmp_path: Path, endpoint: str) -> HuggingFaceRepository:
    return HuggingFaceRepository(cache=tmp_path / "hub", endpoint=endpoint)


def ignored(_progress: DownloadProgress) -> None:
    pass


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


@pytest.mark.usefixtures("online")
def test_an_interrupted_download_is_continued_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1 << 16)
    files = {**FILES, "model.safetensors": os.urandom(300_000)}
    ranges: list[tuple[str, int]] = []

    def interrupt(now: DownloadProgress) -> None:
        if now.done_bytes >= 1 << 17:
            raise KeyboardInterrupt

    with fake_hub({"org/small": files}, ranges=ranges) as endpoint:
        repository = repository_of(tmp_path, endpoint)
        with pytest.raises(KeyboardInterrupt):
            repository.fetch(ModelId("org/small"), interrupt)
        assert repository.find(ModelId("org/small")) is None
        assert ranges == []
        reports: list[DownloadProgress] = []
        source = repository.fetch(ModelId("org/small"), reports.append)
    ((name, begun),) = ranges
    assert name == "model.safetensors"
    assert 1 << 16 <= begun < 300_000
    assert (Path(source.path) / name).read_bytes() == files[name]
    assert reports[0].done_bytes >= begun
    assert reports[-1].total_bytes == sum(map(len, files.values()))


@pytest.mark.usefixtures("online")
@pytest.mark.parametrize("is_damaged", [False, True])
def test_what_is_continued_is_checked_and_the_token_stays_with_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_damaged: bool
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    weights = os.urandom(100_000)
    ranges, stored = list[tuple[str, int]](), list[str]()
    with fake_hub({"org/large": {**FILES, "model.safetensors": weights}}, ranges=ranges, stored=stored) as endpoint:
        repository = repository_of(tmp_path, endpoint)
        (file,) = [one for one in look_up(ModelId("org/large"), tmp_path / "hub", endpoint).files if one.is_weights]
        part = tmp_path / "hub/models--org--large/blobs" / f"{file.blob}.part"
        part.parent.mkdir(parents=True)
        part.write_bytes(b"damaged" if is_damaged else weights[:60_000])
        if is_damaged:
            with pytest.raises(ModelLoadFailed, match=r"model\.safetensors was damaged when it was continued"):
                repository.fetch(ModelId("org/large"), ignored)
            assert not part.exists()
        source = repository.fetch(ModelId("org/large"), ignored)
    assert (Path(source.path) / "model.safetensors").read_bytes() == weights
    assert ranges == [("model.safetensors", 7 if is_damaged else 60_000)]
    assert set(stored) == {""}


@pytest.mark.usefixtures("online")
@pytest.mark.parametrize("size", [100_000, 100_001])
def test_a_part_that_is_whole_or_too_long(tmp_path: Path, size: int) -> None:
    weights = os.urandom(100_000)
    with fake_hub({"org/large": {**FILES, "model.safetensors": weights}}, ranges=[], stored=[]) as endpoint:
        (file,) = [one for one in look_up(ModelId("org/large"), tmp_path / "hub", endpoint).files if one.is_weights]
        part = tmp_path / "hub/models--org--large/blobs" / f"{file.blob}.part"
        part.parent.mkdir(parents=True)
        part.write_bytes((weights + b"?")[:size])
        source = repository_of(tmp_path, endpoint).fetch(ModelId("org/large"), ignored)
    assert (Path(source.path) / "model.safetensors").read_bytes() == weights


@pytest.mark.usefixtures("online")
def test_a_file_is_fetched_by_one_process_at_a_time(tmp_path: Path) -> None:
    with fake_hub({"org/small": FILES}) as endpoint:
        (file,) = [one for one in look_up(ModelId("org/small"), tmp_path / "hub", endpoint).files if one.is_weights]
        part = tmp_path / "hub/models--org--small/blobs" / f"{file.blob}.part"
        part.parent.mkdir(parents=True)
        with part.open("ab") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            with pytest.raises(ModelLoadFailed, match="is being downloaded by another process"):
                repository_of(tmp_path, endpoint).fetch(ModelId("org/small"), ignored)


@pytest.mark.usefixtures("online")
def test_a_blob_that_is_no_digest_names_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.mlx.fake_hub._digest", lambda _content: "../../outside")
    with fake_hub({"org/small": FILES}) as endpoint:
        found = look_up(ModelId("org/small"), tmp_path / "hub", endpoint)
    assert {file.blob for file in found.files} == {""}


@pytest.mark.usefixtures("online")
def test_a_hub_that_cannot_be_reached_is_not_an_unknown_model(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed, match="the hub cannot be reached"):
        repository_of(tmp_path, "http://127.0.0.1:1").fetch(ModelId("org/name"), ignored)
