"""Names to model folders: where models are looked for, what counts as one, and how a download goes."""

import json
import os
from pathlib import Path

import pytest

from adapters.huggingface.model_folder import EMBEDDED_NOTES
from adapters.huggingface.repository import Adapted, AdaptedModels, HuggingFaceRepository
from application.ports.model_repository import DownloadProgress, ModelRepository
from domain.errors import ModelLoadFailed, ModelNotFound
from domain.ids import ModelId
from domain.models.capability import Capability, Pooling
from domain.models.model_card import ModelSource
from tests.support.mlx.fake_hub import COMMIT, fake_hub

_FILES = {
    "config.json": b'{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}',
    "model.safetensors": b"weights",
    "tokenizer.json": b"{}",
}

_POOLING = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}


def _write(folder: Path, without: str = "", **more: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in {**_FILES, **more}.items():
        if name != without:
            (folder / name).write_bytes(content)
    return folder


def _cached(cache: Path, id: str, commit: str = COMMIT, without: str = "", **more: bytes) -> Path:
    """A snapshot as the hub's cache holds it: links to blobs; what is `without` dangles."""
    entry = cache / ("models--" + id.replace("/", "--"))
    snapshot = _write(entry / "snapshots" / commit, without, **more)
    if without:
        (snapshot / without).symlink_to(entry / "blobs" / "absent")
    (entry / "refs").mkdir(exist_ok=True)
    (entry / "refs" / "main").write_text(commit)
    return snapshot


def _repository(tmp_path: Path, *directories: Path, **options: object) -> HuggingFaceRepository:
    options.setdefault("cache", tmp_path / "cache")
    return HuggingFaceRepository([str(one) for one in directories], **options)  # type: ignore[arg-type]


def _own(repository: ModelRepository) -> list[ModelSource]:
    """The models that do not come with Cairn."""
    return [source for source in repository.list() if source.id not in EMBEDDED_NOTES]


def _ignored(_progress: DownloadProgress) -> None:
    """Progress that no test looks at."""


def test_embedded_models_are_always_there(tmp_path: Path) -> None:
    repository = _repository(tmp_path)
    assert [source.id for source in repository.list()] == sorted(EMBEDDED_NOTES)
    for id, note in EMBEDDED_NOTES.items():
        source = repository.find(id)
        assert source is not None
        assert source == repository.fetch(id, _ignored)
        assert (source.owned_by, source.note) == ("cairn", note)
        assert ("no assistant" in note) == (Capability.GENERATE in source.use.capabilities)
        assert {"model.safetensors", "tokenizer.json", "README.md", "NOTICE"} <= set(os.listdir(source.path))


def test_model_directories_hold_models_one_or_two_levels_deep(tmp_path: Path) -> None:
    models = tmp_path / "models"
    plain, nested = _write(models / "tiny"), _write(models / "org" / "small-1.5")
    _write(models / "org" / "deep" / "too-deep")
    repository = _repository(tmp_path, models, tmp_path / "absent")
    assert [source.id for source in repository.list()] == [*sorted(EMBEDDED_NOTES), "org/small-1.5", "tiny"]
    assert [repository.find(ModelId(id)).path for id in ("tiny", "org/small-1.5")] == [str(plain), str(nested)]  # type: ignore[union-attr]
    assert repository.find(ModelId("org")) is None


def test_the_time_of_a_model_is_that_of_its_newest_file(tmp_path: Path) -> None:
    folder = _write(tmp_path / "models" / "tiny")
    for age, name in enumerate(_FILES):
        os.utime(folder / name, (1_700_000_000 - age, 1_700_000_000 - age))
    source = _repository(tmp_path, tmp_path / "models").find(ModelId("tiny"))
    assert source is not None
    assert source.created_s == 1_700_000_000


@pytest.mark.parametrize(
    "id",
    [
        "../outside",
        "..",
        ".",
        "",
        "/",
        "a/../outside",
        "a/..",
        "/etc/passwd",
        "~/x",
        "a/b/c",
        "a\\b",
        "x\0y",
        ".hidden",
        "a//b",
    ],
)
def test_ids_never_lead_out_of_a_model_directory(tmp_path: Path, id: str) -> None:
    _write(tmp_path / "outside")
    (tmp_path / "models" / "a").mkdir(parents=True)
    repository = _repository(tmp_path, tmp_path / "models")
    assert repository.find(ModelId(id)) is None
    with pytest.raises(ModelNotFound):
        repository.fetch(ModelId(id), _ignored)


def test_a_path_is_an_id_only_where_it_was_named_at_the_start(tmp_path: Path) -> None:
    folder = _write(tmp_path / "somewhere" / "tiny")
    id = ModelId(str(folder))
    assert _repository(tmp_path).find(id) is None
    repository = _repository(tmp_path, paths=[str(folder)])
    source = repository.find(id)
    assert source is not None
    assert source.path == str(folder)
    assert id in [one.id for one in repository.list()]


def test_a_named_path_without_a_model_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    repository = _repository(tmp_path, paths=[str(tmp_path / "empty"), str(tmp_path / "nowhere")])
    with pytest.raises(ModelLoadFailed, match=r"empty cannot be served: it has no config\.json"):
        repository.fetch(ModelId(str(tmp_path / "empty")), _ignored)
    with pytest.raises(ModelNotFound, match="does not exist"):
        repository.fetch(ModelId(str(tmp_path / "nowhere")), _ignored)


@pytest.mark.parametrize(
    ("absent", "reason"), [("model.safetensors", "no weights"), ("tokenizer.json", "no tokenizer"), ("config.json", "")]
)
def test_an_incomplete_folder_is_not_listed_and_says_why_when_asked_for(
    tmp_path: Path, absent: str, reason: str
) -> None:
    _write(tmp_path / "models" / "tiny", without=absent)
    repository = _repository(tmp_path, tmp_path / "models")
    assert ModelId("tiny") not in [source.id for source in repository.list()]
    with pytest.raises(ModelLoadFailed if reason else ModelNotFound, match=reason or "no model 'tiny' here"):
        repository.fetch(ModelId("tiny"), _ignored)


def test_all_shards_of_an_index_must_be_there(tmp_path: Path) -> None:
    index = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}).encode()
    folder = _write(tmp_path / "models" / "big", "model.safetensors", **{"model.safetensors.index.json": index})
    (folder / "model-1.safetensors").write_bytes(b"x")
    repository = _repository(tmp_path, tmp_path / "models")
    with pytest.raises(ModelLoadFailed, match=r"weights are missing \(model-2\.safetensors\)"):
        repository.fetch(ModelId("big"), _ignored)
    (folder / "model-2.safetensors").write_bytes(b"x")
    assert repository.find(ModelId("big")) is not None


def test_a_model_directory_may_be_a_cache_of_the_hub(tmp_path: Path) -> None:
    snapshot = _cached(tmp_path / "disk", "org/small")
    _cached(tmp_path / "disk", "org/half", without="model.safetensors")
    repository = _repository(tmp_path, tmp_path / "disk", hub_ids=())
    assert [source.id for source in _own(repository)] == ["org/small"]
    assert repository.find(ModelId("org/small")) == _own(repository)[0]
    assert _own(repository)[0].path == str(snapshot)
    assert repository.find(ModelId("org/half")) is None


def test_complete_snapshots_of_the_hubs_cache_are_found(tmp_path: Path) -> None:
    snapshot = _cached(tmp_path / "cache", "org/small")
    _cached(tmp_path / "cache", "org/half", without="model.safetensors")
    _cached(
        tmp_path / "cache", "org/encoder", **{"config.json": b'{"model_type": "bert", "architectures": ["BertModel"]}'}
    )
    repository = _repository(tmp_path)
    assert [source.id for source in repository.list()] == [*sorted(EMBEDDED_NOTES), "org/small"]
    source = repository.find(ModelId("org/small"))
    assert source is not None
    assert (source.path, source.owned_by) == (str(snapshot), "org")
    assert repository.find(ModelId("org/half")) is None


def test_only_named_ids_are_taken_from_the_hubs_cache_where_it_is_not_open(tmp_path: Path) -> None:
    _cached(tmp_path / "cache", "org/small")
    _cached(tmp_path / "cache", "org/private")
    _write(tmp_path / "models" / "tiny")
    repository = _repository(tmp_path, tmp_path / "models", hub_ids=["org/small", "org/absent"])
    assert [source.id for source in repository.list()] == [*sorted(EMBEDDED_NOTES), "org/small", "tiny"]
    assert repository.find(ModelId("org/small")) is not None
    assert repository.find(ModelId("org/private")) is None
    with pytest.raises(ModelNotFound, match=r"not one of model\.allowed"):
        repository.fetch(ModelId("org/private"), _ignored)


@pytest.mark.parametrize("shard", ["../outside.safetensors", "/etc/hostname", "a/b.safetensors", 7, None, ["x"]])
def test_an_index_names_files_of_its_folder_only(tmp_path: Path, shard: object) -> None:
    index = json.dumps({"weight_map": {"a": shard}}).encode()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "outside.safetensors").write_bytes(b"x")
    _write(tmp_path / "models" / "big", **{"model.safetensors.index.json": index})
    repository = _repository(tmp_path, tmp_path / "models")
    assert [source.id for source in repository.list()] == sorted(EMBEDDED_NOTES)
    with pytest.raises(ModelLoadFailed, match="names entries that are not files of the folder"):
        repository.fetch(ModelId("big"), _ignored)


def test_an_older_complete_snapshot_serves_while_a_newer_one_is_unfinished(tmp_path: Path) -> None:
    older = _cached(tmp_path / "cache", "org/small", commit="a" * 40)
    _cached(tmp_path / "cache", "org/small", commit="b" * 40, without="model.safetensors")
    source = _repository(tmp_path).find(ModelId("org/small"))
    assert source is not None
    assert source.path == str(older)


def test_a_damaged_cache_hides_nothing_else(tmp_path: Path) -> None:
    _cached(tmp_path / "cache", "org/small")
    (tmp_path / "cache" / "models--org--odd" / "refs").mkdir(parents=True)
    (tmp_path / "cache" / "models--org--odd" / "refs" / "main").write_bytes(b"\xff../../..")
    (tmp_path / "cache" / "models--org--file").write_text("not a folder")
    _cached(tmp_path / "cache", "org/broken", **{"config.json": b"{not json"})
    assert [source.id for source in _repository(tmp_path).list()][-1] == "org/small"


def test_an_embedding_models_files_say_what_it_is_for(tmp_path: Path) -> None:
    kinds = ({"type": "sentence_transformers.models.Transformer", "path": ""}, _POOLING)
    folder = _write(tmp_path / "models" / "own", **{"modules.json": json.dumps(kinds).encode()})
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    (folder / "config_sentence_transformers.json").write_text(
        '{"prompts": {"query": "q: "}, "default_prompt_name": "query"}'
    )
    (source,) = _own(_repository(tmp_path, tmp_path / "models"))
    assert (source.use.pooling, source.use.prompt) == (Pooling(is_mean=True, is_normalized=False), "q: ")
    score = _repository(tmp_path, tmp_path / "models", tasks={ModelId("own"): Capability.SCORE})
    adapted = AdaptedModels(score, {ModelId("new"): Adapted(ModelId("own"), str(tmp_path))})
    assert [one.use.capabilities for one in _own(adapted)] == [{Capability.SCORE}] * 2
    for found in (adapted.find(ModelId("new")), adapted.fetch(ModelId("new"), _ignored)):
        assert found is not None
        assert (found.path, found.adapter) == (str(folder), str(tmp_path))
    assert AdaptedModels(score, {ModelId("x"): Adapted(ModelId("gone"), "a")}).find(ModelId("x")) is None


def test_a_model_that_is_refused_is_found_with_the_reason_and_not_listed(tmp_path: Path) -> None:
    _write(tmp_path / "models" / "own", **{"config.json": b'{"model_type": "qwen2", "is_causal": false}'})
    repository = _repository(tmp_path, tmp_path / "models")
    assert _own(repository) == []
    source = repository.find(ModelId("own"))
    assert source is not None
    assert "is_causal" in source.use.refusal


def test_a_model_with_a_tower_sees_where_its_libraries_are(tmp_path: Path) -> None:
    config = b'{"model_type": "qwen3_vl", "vision_config": {"depth": 2}}'
    files = {"config.json": config, "preprocessor_config.json": b"{}"}
    _write(tmp_path / "models" / "seer", **files)
    _write(tmp_path / "models" / "blind", without="preprocessor_config.json", **files)
    seeing = _repository(tmp_path, tmp_path / "models")
    lacking = _repository(tmp_path, tmp_path / "models", blind=lambda: "mlx-vlm is not installed: pip install it")

    (blind, seer), (_, without) = _own(seeing), _own(lacking)

    assert (Capability.SEE in seer.use.capabilities, seer.note) == (True, "")
    assert Capability.SEE not in blind.use.capabilities | without.use.capabilities
    assert blind.note == "Its images are not seen: it has no preprocessor_config.json."
    assert without.note == "Its images are not seen: mlx-vlm is not installed: pip install it."
    assert without.use.unseen == "mlx-vlm is not installed: pip install it"


@pytest.mark.parametrize(
    ("name", "is_seen"), [("language_model.norm.weight", False), ("vision_tower.norm.weight", True), ("visual.x", True)]
)
def test_a_conversion_that_left_the_tower_out_is_served_for_text(tmp_path: Path, name: str, is_seen: bool) -> None:
    header = json.dumps({name: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}).encode()
    config = b'{"model_type": "qwen3_5", "vision_config": {"depth": 2}}'
    files = {"config.json": config, "preprocessor_config.json": b"{}"}
    _write(tmp_path / "models" / "text", **files, **{"model.safetensors": len(header).to_bytes(8, "little") + header})
    (source,) = _own(_repository(tmp_path, tmp_path / "models"))
    assert (Capability.SEE in source.use.capabilities) == is_seen
    assert source.note == ("" if is_seen else "Its images are not seen: it has no weights for images.")


def test_what_the_engine_cannot_load_is_not_listed(tmp_path: Path) -> None:
    _write(tmp_path / "models" / "tiny")
    _write(tmp_path / "models" / "alien", **{"config.json": b'{"model_type": "alien"}'})
    repository = _repository(tmp_path, tmp_path / "models", can_load=lambda model_type: model_type != "alien")
    assert "alien" not in [source.id for source in repository.list()]
    assert "tiny" in [source.id for source in repository.list()]


def test_unknown_ids_are_not_found_without_a_network(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no model 'nobody' here") as failed:
        _repository(tmp_path).fetch(ModelId("nobody"), _ignored)
    assert failed.value.param == "model"
    with pytest.raises(ModelNotFound, match="downloads are switched off"):
        _repository(tmp_path, allow_download=False).fetch(ModelId("org/name"), _ignored)


def test_offline_is_distinguished_from_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelLoadFailed, match="the hub cannot be reached"):
        _repository(tmp_path).fetch(ModelId("org/name"), _ignored)


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


@pytest.mark.usefixtures("online")
def test_a_first_download_reports_progress_and_is_found_from_then_on(tmp_path: Path) -> None:
    files = {**_FILES, "model.safetensors": b"w" * 300_000, "pytorch_model.bin": b"no", "code.py": b"no"}
    reports: list[DownloadProgress] = []
    with fake_hub({"org/small": files}) as endpoint:
        source = _repository(tmp_path, endpoint=endpoint).fetch(ModelId("org/small"), reports.append)
    assert sorted(os.listdir(source.path)) == sorted(_FILES)
    assert (Path(source.path) / "model.safetensors").read_bytes() == files["model.safetensors"]
    assert max(report.done_bytes for report in reports) >= 300_000
    assert max(report.total_bytes for report in reports) >= 300_000
    assert _repository(tmp_path).find(ModelId("org/small")) == source


@pytest.mark.usefixtures("online")
def test_a_download_has_the_files_that_say_how_vectors_are_made(tmp_path: Path) -> None:
    modules = json.dumps([{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]).encode()
    files = {**_FILES, "modules.json": modules, "1_Pooling/config.json": b'{"pooling_mode_mean_tokens": true}'}
    with fake_hub({"org/small": files}) as endpoint:
        source = _repository(tmp_path, endpoint=endpoint).fetch(ModelId("org/small"), _ignored)
    assert source.use.pooling == Pooling(is_mean=True, is_normalized=False)


@pytest.mark.usefixtures("online")
def test_what_the_hub_refuses_is_said_in_words(tmp_path: Path) -> None:
    with fake_hub({"org/gguf": {"config.json": b"{}"}}, gated=frozenset({"org/gated"})) as endpoint:
        repository = _repository(tmp_path, endpoint=endpoint)
        with pytest.raises(ModelNotFound, match="the hub has no model org/nobody"):
            repository.fetch(ModelId("org/nobody"), _ignored)
        with pytest.raises(ModelLoadFailed, match="org/gated is gated"):
            repository.fetch(ModelId("org/gated"), _ignored)
        with pytest.raises(ModelLoadFailed, match="is not downloaded: it has no weights"):
            repository.fetch(ModelId("org/gguf"), _ignored)


def test_the_form_of_weights_is_known_before_they_are_loaded(tmp_path: Path) -> None:
    found = _repository(tmp_path).find(ModelId("cairn-demo"))
    assert found is not None
    assert (found.form.family, found.form.quantization) == ("qwen3", "BF16")
    assert found.form.parameters(found.file_bytes) == "11.0M"
