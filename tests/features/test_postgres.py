"""Vectors in PostgreSQL with pgvector, on a server of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from helpers.commands import rows, run
from helpers.streams import space, stream
from unseen.errors import DataError

psycopg = pytest.importorskip("psycopg", reason="needs the extra postgres")
BIN = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), Path("/usr/bin"))
LABELS = space()
Z = stream(LABELS, 60)


@pytest.fixture(scope="module")
def uri():
    """The address of a server that ends with the tests."""
    if not (BIN / "initdb").exists():
        pytest.skip("needs PostgreSQL: apt-get install postgresql")
    folder = Path(tempfile.mkdtemp(prefix="pg-"))  # pytest closes its own to other users
    as_user: dict = {}
    if os.getuid() == 0:  # which PostgreSQL refuses
        user = pwd.getpwnam("postgres")
        as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        os.chown(folder, user.pw_uid, user.pw_gid)

    def call(*words: str) -> None:
        subprocess.run(words, check=True, capture_output=True, timeout=60, cwd=folder, **as_user)

    data, options = folder / "data", f"-k {folder} -c listen_addresses='' -c fsync=off"
    call(str(BIN / "initdb"), "-D", str(data), "-U", "me", "-A", "trust")
    call(str(BIN / "pg_ctl"), "-D", str(data), "-w", "-o", options, "-l", str(folder / "log"), "start")
    address = f"postgresql://me@/postgres?host={folder}"
    try:
        with psycopg.connect(address) as db:
            if not db.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'").fetchone():
                pytest.skip("needs pgvector: Debian's postgresql-NN-pgvector")
            db.execute("CREATE EXTENSION vector")
        yield address
    finally:
        call(str(BIN / "pg_ctl"), "-D", str(data), "-m", "immediate", "stop")
        shutil.rmtree(folder)


@pytest.fixture
def table(uri, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    LABELS.save(tmp_path / "space.safetensors")
    with psycopg.connect(uri) as db:
        db.execute("DROP TABLE IF EXISTS photos_verdicts, photos, plain")
        db.execute(f"CREATE TABLE photos (id bigint PRIMARY KEY, name text, embedding vector({LABELS.dim}))")
        db.execute("CREATE TABLE plain (id bigint PRIMARY KEY)")
        with db.cursor() as cursor:
            values = [(n, str(row.tolist())) for n, row in enumerate(Z)]
            cursor.executemany("INSERT INTO photos VALUES (%s, 'x', %s::vector)", values)
            cursor.execute("INSERT INTO photos VALUES (1000, 'not encoded', NULL)")
    return uri


def written(uri) -> list[tuple]:
    with psycopg.connect(uri) as db:
        return db.execute("SELECT id, verdict, name, nearest FROM photos_verdicts ORDER BY id").fetchall()


def test_vectors_of_a_table_get_verdicts_in_a_table_beside_it(table):
    words = ("score", table, "--table", "photos", "--space", "space.safetensors", "--json")
    judged = [row for row in rows(run(*words)) if "verdict" in row]
    assert len(judged) == 60
    told = {int(row["key"]): (row["verdict"], row["name"], row["nearest"]) for row in judged}
    assert {id: tuple(rest) for id, *rest in written(table)} == told
    with psycopg.connect(table) as db:
        db.execute("DELETE FROM photos WHERE id < 10")
    run(*words)  # once more: in place of the first
    assert [row[0] for row in written(table)] == list(range(10, 60))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("plain", r"a column of pgvector, got plain \(id bigint\)"),
        ("nothing", 'got: relation "nothing" does not exist'),
    ],
)
def test_a_table_without_vectors_is_refused_in_words(table, name, message):
    with pytest.raises(DataError, match=message):
        run("score", table, "--table", name, "--space", "space.safetensors")


def test_a_name_is_a_name_and_no_statement(table):
    with pytest.raises(DataError):
        run("score", table, "--table", 'photos"; DROP TABLE photos; --', "--space", "space.safetensors")
    with psycopg.connect(table) as db:
        assert db.execute("SELECT count(*) FROM photos").fetchone() == (61,)


def test_a_server_that_is_not_there_is_an_error_in_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    LABELS.save(tmp_path / "space.safetensors")
    with pytest.raises(DataError, match="got: connection"):
        run("score", f"postgresql://me@/x?host={tmp_path}", "--table", "t", "--space", "space.safetensors")
