"""Downloads that are interrupted, shared or impossible."""

import fcntl
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import pytest

from adapters.huggingface.hub_download import download, look_up
from adapters.huggingface.repository import HuggingFaceRepository
from application.ports.model_repository import DownloadProgress
from domain.errors import ModelLoadFailed
from domain.ids import ModelId
from tests.support.mlx.fake_hub import COMMIT, fake_hub

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
            with pytest.raises(ModelLoadFailed, match=r"model\.safetensors has another digest than the hub says"):
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
def test_a_snapshot_links_to_files_that_are_named_by_their_digests(tmp_path: Path) -> None:
    files = {**FILES, "1_Pooling/config.json": b"{}", "vocab.txt": b""}
    with fake_hub({"org/small": files}, stored=[]) as endpoint:
        for _ in range(2):
            source = repository_of(tmp_path, endpoint).fetch(ModelId("org/small"), ignored)
    entry, folder = tmp_path / "hub/models--org--small", Path(source.path)
    assert (entry / "refs/main").read_text() == folder.name
    assert {name: (folder / name).read_bytes() for name in files} == files
    blobs = {(folder / name).resolve() for name in files}
    assert all((folder / name).is_symlink() for name in files)
    assert {*(entry / "blobs").iterdir()} == blobs
    assert sha256(b"weights").hexdigest() in {blob.name for blob in blobs}


@pytest.mark.usefixtures("online")
def test_on_a_volume_without_links_the_files_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_link: Path, _target: str) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "symlink_to", refused)
    with fake_hub({"org/small": FILES}) as endpoint:
        source = repository_of(tmp_path, endpoint).fetch(ModelId("org/small"), ignored)
        assert look_up(ModelId("org/small"), tmp_path / "hub", endpoint).missing_bytes == 0
    assert {path.name: path.read_bytes() for path in Path(source.path).iterdir()} == FILES


@pytest.mark.usefixtures("online")
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("is_stored", [False, True])
def test_other_bytes_of_the_same_length_are_refused(tmp_path: Path, name: str, is_stored: bool) -> None:
    """A mirror lists the true digests and sends other bytes."""
    sent = dict(FILES)
    with fake_hub({"org/small": sent}, stored=[] if is_stored else None) as endpoint:
        found = look_up(ModelId("org/small"), tmp_path / "hub", endpoint)
        listed = {file.path: file.blob for file in found.files}
        sent[name] = FILES[name][::-1]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tests.support.mlx.fake_hub._listing", lambda *_, **__: listing_of(FILES, listed))
            with pytest.raises(ModelLoadFailed, match=f"{name} has another digest than the hub says"):
                repository_of(tmp_path, endpoint).fetch(ModelId("org/small"), ignored)
    assert not any(path.read_bytes() == sent[name] for path in tmp_path.rglob("*") if path.is_file())


def listing_of(files: Mapping[str, bytes], blobs: Mapping[str, str], sha: str = COMMIT) -> object:
    siblings = [
        {"rfilename": path, "size": len(content), "blobId": blobs[path]}
        | ({"lfs": {"sha256": blobs[path], "size": len(content), "pointerSize": 1}} if len(blobs[path]) == 64 else {})
        for path, content in files.items()
    ]
    return {"id": "org/small", "sha": sha, "siblings": siblings}


@pytest.mark.usefixtures("online")
@pytest.mark.parametrize("sent", [b"weights", b"others!"])
def test_a_file_beyond_plain_http_comes_by_xet_and_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    def xet_get(*, incomplete_path: Path, xet_file_data: object, expected_size: int, **_: object) -> None:
        assert (xet_file_data, expected_size) == (None, 7)
        incomplete_path.write_bytes(sent)

    monkeypatch.setattr("adapters.huggingface.hub_download.MAX_RESUMABLE_BYTES", 6)
    monkeypatch.setattr("huggingface_hub.file_download.xet_get", xet_get)
    weights = {"model.safetensors": b"weights"}
    with fake_hub({"org/small": {**weights, "tokenizer.json": b"{}", "config.json": b'{"a":'}}) as endpoint:
        cache = tmp_path / "hub"
        if sent == b"weights":
            assert (download(ModelId("org/small"), cache, ignored, endpoint) / "model.safetensors").read_bytes() == sent
        else:
            with pytest.raises(ModelLoadFailed, match="has another digest than the hub says"):
                download(ModelId("org/small"), cache, ignored, endpoint)


@pytest.mark.usefixtures("online")
@pytest.mark.parametrize("etag", ["../../../outside", "/tmp/outside", "0" * 40])
def test_an_etag_names_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, etag: str) -> None:
    monkeypatch.setattr("tests.support.mlx.fake_hub._etag", lambda _content: etag.replace("/tmp", str(tmp_path)))
    with fake_hub({"org/small": FILES}) as endpoint:
        source = repository_of(tmp_path, endpoint).fetch(ModelId("org/small"), ignored)
    assert {name: (Path(source.path) / name).read_bytes() for name in FILES} == FILES
    assert not [path for path in tmp_path.rglob("*") if path.name in ("outside", "0" * 40)]
    assert not (tmp_path.parent / "outside").exists()


@pytest.mark.usefixtures("online")
def test_a_file_whose_digest_the_hub_does_not_say_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.mlx.fake_hub._digest", lambda _content: "../../outside")
    with fake_hub({"org/small": FILES}) as endpoint:
        found = look_up(ModelId("org/small"), tmp_path / "hub", endpoint)
        assert {file.blob for file in found.files} == {""}
        with pytest.raises(ModelLoadFailed, match=r"the hub says no digest of config\.json"):
            repository_of(tmp_path, endpoint).fetch(ModelId("org/small"), ignored)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.usefixtures("online")
@pytest.mark.parametrize(
    ("path", "sha"),
    [
        ("../../../outside.json", COMMIT),
        ("/outside.json", COMMIT),
        ("./outside.json", COMMIT),
        ("a//outside.json", COMMIT),
        ("a\n.json", COMMIT),
        ("outside.json", "../../outside"),
        ("outside.json", "main"),
    ],
)
def test_names_that_lead_out_of_the_model_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, sha: str
) -> None:
    files = {**FILES, path: b"{}"}
    with fake_hub({"org/small": files}) as endpoint:
        listing = listing_of(files, dict.fromkeys(files, "0" * 40), sha)
        monkeypatch.setattr("tests.support.mlx.fake_hub._listing", lambda *_, **__: listing)
        with pytest.raises(ModelLoadFailed, match="which no hub does"):
            repository_of(tmp_path, endpoint).fetch(ModelId("org/small"), ignored)
    assert not [*tmp_path.rglob("*")]


@pytest.mark.usefixtures("online")
def test_a_hub_that_cannot_be_reached_is_not_an_unknown_model(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed, match="the hub cannot be reached"):
        repository_of(tmp_path, "http://127.0.0.1:1").fetch(ModelId("org/name"), ignored)


@pytest.mark.usefixtures("online")
def test_an_index_beyond_any_model_s_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.huggingface.hub_download.MAX_INDEX_BYTES", 40)
    index = b'{"weight_map": {"a": "model.safetensors"}}'
    with (
        fake_hub({"org/small": {**FILES, "model.safetensors.index.json": index}}) as endpoint,
        pytest.raises(ModelLoadFailed, match="an index of 42 bytes"),
    ):
        repository_of(tmp_path, endpoint).fetch(ModelId("org/small"), ignored)


@pytest.mark.usefixtures("online")
def test_only_the_weights_that_the_index_names_are_fetched_and_gaps_are_told_before(tmp_path: Path) -> None:
    index = b'{"weight_map": {"a": "model-1-of-1.safetensors"}}'
    named = {"model-1-of-1.safetensors": b"shard", "model.safetensors.index.json": index}
    broken = {"model.safetensors.index.json": index, "config.json": FILES["config.json"]}
    with fake_hub({"org/two": {**FILES, **named}, "org/gap": broken}) as endpoint:
        source = repository_of(tmp_path, endpoint).fetch(ModelId("org/two"), ignored)
        with pytest.raises(ModelLoadFailed, match=r"not downloaded: weights are missing \(model-1-of-1"):
            repository_of(tmp_path, endpoint).fetch(ModelId("org/gap"), ignored)
    assert {path.name for path in Path(source.path).iterdir()} == {*FILES, *named} - {"model.safetensors"}
