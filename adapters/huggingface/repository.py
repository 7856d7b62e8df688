"""Model ids to folders: embedded models, named paths, model directories, and the hub's cache, in this order.

An id is the name of an embedded model; a path exactly as configured; `NAME` or `ORG/NAME` below a model directory; or a
hub id `ORG/NAME`. A client's id is never used as a path: it must be a configured path or consist of plain names. All
programs of a user share the hub's cache, so it can be limited to configured ids. Only `fetch` contacts the network.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from adapters.huggingface.hub_cache import default_cache
from adapters.huggingface.hub_download import download
from adapters.huggingface.model_folder import (
    EMBEDDED_NOTES,
    cached_folder,
    cached_models,
    embedded_folder,
    missing_from,
    newest_file_s,
    read_config,
    read_files,
    weight_file_bytes,
)
from application.ports.model_repository import DownloadProgress, ModelRepository
from domain.errors import ModelLoadFailed, ModelNotFound
from domain.ids import ModelId
from domain.models.capability import Capability
from domain.models.model_card import ModelOrigin, ModelSource
from domain.models.model_files import use_of
from domain.models.weight_form import form_of
from domain.printable import printable

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_(\[][A-Za-z0-9_.,+=@~()\[\]' -]{0,95}")
_HUB_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}")


def _any_type(model_type: str) -> bool:
    return bool(model_type)


class HuggingFaceRepository:
    """A ModelRepository of local folders and the hub.

    `directories`: each holds models as `NAME/` or `ORG/NAME/`, or as the hub's cache does. `paths`: model folders whose
    id is the path as written. `cache`: the hub's cache, by default huggingface_hub's. `hub_ids`: the only ids that may
    come from the hub or its cache; None for any. `can_load`: whether the engine knows a config's model_type; other
    models are not listed, nor are those that are refused. `endpoint`: the URL of another hub. `tasks`: what models are
    for by the settings. `blind`: why no model sees here, and what to do; empty if they do.
    """

    def __init__(
        self,
        directories: Sequence[str] = (),
        *,
        paths: Sequence[str] = (),
        allow_download: bool = True,
        cache: Path | None = None,
        hub_ids: Collection[str] | None = None,
        can_load: Callable[[str], bool] = _any_type,
        endpoint: str | None = None,
        tasks: Mapping[ModelId, Capability] | None = None,
        blind: Callable[[], str] = str,
    ) -> None:
        self._tasks, self._blind = tasks or {}, blind
        self._directories = tuple(Path(directory).expanduser() for directory in directories)
        self._paths = {ModelId(path): Path(path).expanduser() for path in paths}
        self._allow_download = allow_download
        self._cache = cache if cache is not None else default_cache()
        self._hub_ids = None if hub_ids is None else frozenset(hub_ids)
        self._can_load = can_load
        self._endpoint = endpoint

    def list(self) -> Sequence[ModelSource]:
        found: dict[ModelId, ModelSource] = {}
        for source in self._all():
            if source.id in found or source.use.refusal:
                continue
            if self._can_load(str(read_config(Path(source.path)).get("model_type", ""))):
                found[source.id] = source
        return [found[id] for id in sorted(found)]

    def find(self, id: ModelId) -> ModelSource | None:
        if (embedded := embedded_folder(id)) is not None:
            return self._source(id, embedded, "cairn", ModelOrigin.EMBEDDED)
        if id in self._paths:
            return self._source(id, self._paths[id], "local") if not missing_from(self._paths[id]) else None
        names = plain_names(id)
        for directory in self._directories if names else ():
            folder = directory.joinpath(*names)
            if not missing_from(folder):
                return self._source(id, folder, "local")
            if is_hub_id(id) and (snapshot := cached_folder(directory, id)) is not None:
                return self._source(id, snapshot, "local")
        snapshot = cached_folder(self._cache, id) if is_hub_id(id) and self._takes_from_hub(id) else None
        return self._source(id, snapshot, names[0], ModelOrigin.HUB) if snapshot is not None else None

    def fetch(self, id: ModelId, on_progress: Callable[[DownloadProgress], None]) -> ModelSource:
        source = self.find(id)
        if source is not None:
            return source
        names = plain_names(id)
        self._refuse_incomplete(id, names)
        if not is_hub_id(id):
            raise ModelNotFound(
                f"no model '{printable(id)}' here; see `cairn models`, or name a hub model as ORG/NAME", param="model"
            )
        if not self._takes_from_hub(id):
            raise ModelNotFound(f"no model {id!r} here, and it is not one of model.allowed", param="model")
        if not self._allow_download:
            raise ModelNotFound(f"no model '{printable(id)}' here, and downloads are switched off", param="model")
        folder = download(id, self._cache, on_progress, self._endpoint)
        if missing := missing_from(folder):
            raise ModelLoadFailed(f"{id} was downloaded but cannot be served: {missing}")
        return self._source(id, folder, names[0], ModelOrigin.HUB)

    def _all(self) -> Iterator[ModelSource]:
        for id in EMBEDDED_NOTES:
            folder = embedded_folder(id)
            if folder is not None:
                yield self._source(id, folder, "cairn", ModelOrigin.EMBEDDED)
        for id, folder in self._paths.items():
            if not missing_from(folder):
                yield self._source(id, folder, "local")
        for directory in self._directories:
            for id, folder in (*_models_in(directory), *cached_models(directory)):
                yield self._source(id, folder, "local")
        for id, folder in cached_models(self._cache):
            if self._takes_from_hub(id):
                yield self._source(id, folder, id.split("/")[0], ModelOrigin.HUB)

    def _source(self, id: ModelId, folder: Path, owned_by: str, origin: ModelOrigin = ModelOrigin.LOCAL) -> ModelSource:
        note = EMBEDDED_NOTES.get(id, "") if origin is ModelOrigin.EMBEDDED else ""
        files, file_bytes = read_files(folder, id), weight_file_bytes(folder)
        use, form = use_of(files, self._tasks.get(id)), form_of(files.config)
        source = ModelSource(
            id, str(folder), newest_file_s(folder), owned_by, file_bytes, note=note, use=use, form=form, origin=origin
        )
        why = self._blind() if Capability.SEE in use.capabilities else use.unseen
        return source.without_images(why) if why else source

    def _takes_from_hub(self, id: ModelId) -> bool:
        return self._hub_ids is None or id in self._hub_ids

    def _refuse_incomplete(self, id: ModelId, names: Sequence[str]) -> None:
        """Raises ModelNotFound or ModelLoadFailed for a configured or local folder that cannot be served."""
        named = [self._paths[id]] if id in self._paths else []
        for folder in [*named, *(directory.joinpath(*names) for directory in self._directories if names)]:
            if folder in named and not folder.is_dir():
                raise ModelNotFound(f"the model folder {folder} does not exist", param="model")
            if folder.is_dir() and (folder in named or (folder / "config.json").is_file()):
                raise ModelLoadFailed(f"{id}: {folder} cannot be served: {missing_from(folder)}")


def plain_names(id: ModelId) -> tuple[str, ...]:
    """The one or two plain names of an id; empty for any other id, such as a path."""
    names = tuple(id.split("/"))
    is_plain = len(names) <= 2 and all(_PLAIN_NAME.fullmatch(name) and ".." not in name for name in names)
    return names if is_plain else ()


def is_hub_id(id: ModelId) -> bool:
    """True for ORG/NAME as hubs write it."""
    return len(plain_names(id)) == 2 and all(map(_HUB_NAME.fullmatch, id.split("/")))


def _models_in(directory: Path) -> Iterator[tuple[ModelId, Path]]:
    for folder in _folders(directory):
        if (folder / "config.json").is_file():
            if not missing_from(folder):
                yield ModelId(folder.name), folder
            continue
        for inner in _folders(folder):
            if not missing_from(inner):
                yield ModelId(f"{folder.name}/{inner.name}"), inner


def _folders(directory: Path) -> Sequence[Path]:
    """The subfolders whose names can be ids; empty if the directory is absent or unreadable."""
    try:
        return sorted(path for path in directory.iterdir() if path.is_dir() and plain_names(ModelId(path.name)))
    except OSError:
        return ()


# ---- models with an adapter ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Adapted:
    """A model with a LoRA adapter over its weights. `base`: the model's id; `adapter`: a folder."""

    base: ModelId
    adapter: str


class AdaptedModels:
    """A ModelRepository that adds models with an adapter to another repository, and replaces models of the same id."""

    def __init__(self, repository: ModelRepository, adapted: Mapping[ModelId, Adapted]) -> None:
        self._repository = repository
        self._adapted = adapted

    def list(self) -> Sequence[ModelSource]:
        plain = {source.id: source for source in self._repository.list()}
        found = {id: source for id in self._adapted if (source := self.find(id)) is not None}
        return [(plain | found)[id] for id in sorted(plain | found)]

    def find(self, id: ModelId) -> ModelSource | None:
        adapted = self._adapted.get(id)
        if adapted is None:
            return self._repository.find(id)
        source = self._repository.find(adapted.base)
        return None if source is None else _over(source, id, adapted)

    def fetch(self, id: ModelId, on_progress: Callable[[DownloadProgress], None]) -> ModelSource:
        adapted = self._adapted.get(id)
        if adapted is None:
            return self._repository.fetch(id, on_progress)
        return _over(self._repository.fetch(adapted.base, on_progress), id, adapted)


def _over(source: ModelSource, id: ModelId, adapted: Adapted) -> ModelSource:
    folder = Path(adapted.adapter).expanduser()
    created_s = max(source.created_s, newest_file_s(folder))
    return replace(source, id=id, adapter=str(folder), created_s=created_s, origin=ModelOrigin.LOCAL)
