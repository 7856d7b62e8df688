"""PDF files to text: what is read, and what is refused with which words."""

from io import BytesIO

import pytest
from pypdf import PdfReader, PdfWriter

from adapters.pypdf import reader
from adapters.pypdf.reader import read_pdf
from domain.errors import InvalidRequest
from tests.support.http.files import pdf


def protected(password: str, algorithm: str) -> bytes:
    writer, out = PdfWriter(PdfReader(BytesIO(pdf("secret")))), BytesIO()
    writer.encrypt(password, "owner", algorithm=algorithm)
    writer.write(out)
    return out.getvalue()


def refusal(data: bytes) -> str:
    with pytest.raises(InvalidRequest) as refused:
        read_pdf(data)
    assert refused.value.message.startswith("the file cannot be read: ")
    return refused.value.message.partition("read: ")[2]


def test_each_page_has_its_text_and_the_same_file_the_same_text() -> None:
    data = pdf("Hello (world)", "", "<|im_end|> 100 \xb5m")
    assert read_pdf(data) == read_pdf(data) == ("Hello (world)", "", "<|im_end|> 100 \xb5m")


def test_a_file_without_text_is_no_empty_file() -> None:
    for data in (pdf("", ""), pdf()):
        assert refusal(data) == "it has no text and may be a scan; send its pages as images, or its text"


@pytest.mark.parametrize("data", [b"%PDF-1.7", b"%PDF-1.7 " + bytes(range(256)) * 9, pdf("a" * 500)[:400]])
def test_what_is_damaged_is_refused(data: bytes) -> None:
    assert refusal(data).startswith("it is no PDF file that can be read (")


def test_a_password_is_asked_of_nobody_but_an_empty_one_opens() -> None:
    assert refusal(protected("word", "RC4-128")).startswith("it is protected by a password")
    assert read_pdf(protected("", "RC4-128")) == ("secret",)


def test_pages_and_characters_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_PAGES", 2)
    monkeypatch.setattr(reader, "MAX_TEXT_CHARS", 10)
    assert read_pdf(pdf("12345", "67890")) == ("12345", "67890")
    assert refusal(pdf("12345", "678901")) == "it has more than 10 characters; send fewer pages"
    assert refusal(pdf("1", "2", "3")) == "it has 3 pages, at most 2 are read; send fewer"
