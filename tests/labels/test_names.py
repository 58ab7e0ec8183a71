from __future__ import annotations

from pathlib import Path

import pytest

from unseen.errors import LabelError
from unseen.labels import read_names
from unseen.labels.names import read_words


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_comments_blank_lines_and_spaces_are_left_out(tmp_path: Path) -> None:
    file = write(tmp_path / "names.txt", b"# my classes\n\n  golden retriever \ncat\r\n\n# end\n")
    assert read_names(file) == ("golden retriever", "cat")
    assert read_words(write(tmp_path / "w.txt", b"a\nb\na\n")) == ("a", "b")  # a list of words may repeat itself


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_text_that_says_what_it_is_is_read(tmp_path: Path, encoding: str) -> None:
    assert read_names(write(tmp_path / "n.txt", "œuf\n猫\n".encode(encoding))) == ("œuf", "猫")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("cat\ndog\n".encode("utf-16-le"), "UTF-16"),
        ("caf\xe9\n".encode("latin1"), "0xe9 at position 3"),
        (b"cat\ndog\ncat\n", r"'cat' on lines 1 and 3"),
        (b"# nothing\n\n", "got none"),
        (b"\xff\xfec", "expected UTF-8"),
    ],
)
def test_doubtful_files_are_refused(tmp_path: Path, data: bytes, says: str) -> None:
    with pytest.raises(LabelError, match=says):
        read_names(write(tmp_path / "n.txt", data))


def test_a_missing_file_is_a_label_error(tmp_path: Path) -> None:
    with pytest.raises(LabelError, match="check the path"):
        read_names(tmp_path / "absent.txt")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("n.csv", "# my classes\nid,name\n0,tench\n1,sea urchin\n"),
        ("n.csv", "0;tench\n1;sea urchin\n"),
        ("n.csv", "tench\nsea urchin\n"),
        ("n.tsv", 'class\tid\ntench\t0\n"sea urchin"\t1\n'),
        ("n.json", '["tench", "sea urchin"]'),
        ("n.json", '{"0": ["n01440764", "tench"], "1": ["n02319095", "sea urchin"]}'),
        ("n.json", '{"categories": [{"id": 1, "name": "tench"}, {"id": 2, "name": "sea urchin"}]}'),
        ("n.yaml", "# mine\n- tench\n- sea urchin  # spiny\n"),
        ("n.yml", "path: data\nnames:\n  0: tench\n  1: sea urchin\n"),
        ("n.yaml", "animals:\n  - tench\n  - sea urchin\n"),
        ("n.names", "tench\nsea urchin\n"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_names_are_read_as_people_keep_them(tmp_path: Path, file: str, text: str, encoding: str) -> None:
    assert read_names(write(tmp_path / file, text.encode(encoding))) == ("tench", "sea urchin")


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("n.json", "[tench]", "expected JSON in .*line 1"),
        ("n.json", "3", 'expected a list of names, .*{"names": .* got int'),
        ("n.json", "[1]", "got 1 as entry 1; quote names"),
        ("n.yaml", "- tench\n- no\n", "got False as entry 2; quote names"),
        ("n.yaml", "- [", "expected YAML in"),
        ("n.csv", "id,name\n0,tench\n1\n", "expected a name in column 2 .* got none in line 3"),
        ("n.csv", "name\ncat\ndog\ncat\n", r"'cat' on lines 2 and 4"),
        ("n.json", "[]", "got none"),
        ("n.json", '{"pets": ["cat", "dog"], "farm": ["cow", "pig"]}', r"got \['cat', 'dog'\] as entry 1"),
    ],
)
def test_names_that_cannot_be_told_are_refused(tmp_path: Path, file: str, text: str, says: str) -> None:
    with pytest.raises(LabelError, match=says):
        read_names(write(tmp_path / file, text.encode()))
