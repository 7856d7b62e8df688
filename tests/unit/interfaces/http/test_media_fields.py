"""The bound on the bytes of an image, in each form that a client may send."""

import base64

import pytest

from domain.errors import InvalidRequest
from interfaces.http.fields import media_fields
from interfaces.http.fields.media_fields import image_of


@pytest.mark.parametrize("before", ["", "data:image/png;base64,"])
def test_a_file_beyond_the_limit_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    monkeypatch.setattr(media_fields, "MAX_IMAGE_BYTES", 1_000)
    allowed, larger = (before + base64.encodebytes(bytes(size)).decode() for size in (1_000, 1_001))
    assert len(image_of(allowed, "a", is_url=bool(before)).data) == 1_000
    with pytest.raises(InvalidRequest, match="a: the image has more than") as refused:
        image_of(larger, "a", is_url=bool(before))
    assert refused.value.param == "a"
