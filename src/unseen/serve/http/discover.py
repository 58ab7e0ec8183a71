"""Routes from unknown to known: why, groups, edits of the names, and what people say of single samples."""

import csv
import io
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from fastapi import APIRouter, Request
from jaxtyping import Float
from starlette.responses import Response
from torch import Tensor

from unseen import LabelSpace
from unseen.discover import Edited, dismiss, promote, rename, retire
from unseen.discover.edit import check_text_vector
from unseen.discover.review import ReviewedImage, coco, fiftyone
from unseen.errors import EncoderError, LabelError, ServiceError
from unseen.labels.edits import check_new_name, negative_vector
from unseen.serve.http import edit_schema as forms
from unseen.serve.http import schema
from unseen.serve.http.downloads import download
from unseen.serve.http.routes import AdminEntry, ReadEntry, Shared
from unseen.serve.http.service import Service
from unseen.serve.http.views import json_response
from unseen.serve.stream.batch import dump_json
from unseen.serve.stream.editing import Change, edit_stream, undo_edit
from unseen.serve.stream.groups import KeptSamples, Words, corrected, explain_sample, reviewed_samples, stream_groups
from unseen.serve.stream.store import StreamEntry
from unseen.session import Session
from unseen.storage.csv_cells import as_text_cell

router = APIRouter(responses={"4XX": {"model": schema.Error}, "5XX": {"model": schema.Error}})
PATH = "/v1/streams/{id}"
PICTURED = 9  # samples of a group that are named as having a thumbnail


def editing(model: type[forms.EditBody]) -> dict[str, Any]:
    """How a route that takes an edit is described."""
    return {"response_model": forms.EditInfo, "openapi_extra": schema.request_body(model)}


@router.get(PATH + "/groups", response_model=forms.GroupList)
async def groups(service: Shared, entry: ReadEntry) -> Any:
    """Group the unknown samples that the stream has kept, with suggested names."""
    found = await service.run_chore(entry.config.owner, partial(stream_groups, entry.opened, service.words))
    for one in found["groups"]:
        one["pictured"] = [seq for seq in one["keys"] if entry.thumbnail(seq)][:PICTURED]
    return found


@router.get(PATH + "/explain/{seq}", response_model=forms.ExplanationInfo)
async def explain(service: Shared, entry: ReadEntry, seq: int) -> Any:
    """Say why a kept sample gets its verdict: nearest names, what speaks against it, similar earlier samples."""
    shown = await service.run_chore(entry.config.owner, partial(explain_sample, entry.opened, seq))
    seqs = [seq, *(one["seq"] for one in shown["similar"])]
    return shown | {"key": entry.keys.get(seq), "pictured": [one for one in seqs if entry.thumbnail(one)]}


@router.get(PATH + "/edits", response_model=forms.EditList)
async def list_edits(entry: ReadEntry) -> Any:
    """List what people changed since the last reset, oldest first."""
    return {"edits": entry.opened.readers.reservoir.journal}


@router.get(PATH + "/space")
async def label_space(service: Shared, entry: ReadEntry) -> Response:
    """Download the label space of now, which the state needs and `LabelSpace.load` reads."""
    labels = entry.opened.labels

    def write(path: Path) -> tuple[str, dict[str, str]]:
        labels.save(path)
        return f"{entry.config.id}.space.safetensors", {"x-unseen-labels": labels.fingerprint}

    return await download(service, entry, write)


@router.post(PATH + "/promote", **editing(forms.PromoteBody))
async def promote_group(service: Shared, entry: AdminEntry, request: Request) -> Any:
    """Make a known name of a group or of one kept sample; the stream goes on with what it has learned."""
    body = await service.read_json(request, forms.PromoteBody, entry.config.owner)
    if (body.group is None) == (body.seq is None):
        raise ServiceError(422, "expected either a group or a seq, got both or neither; send one of them")
    stream, text = entry.opened, await name_vector(service, entry, body)

    def change(session: Session) -> Edited:
        which: int | str = body.group or KeptSamples.within(stream, session).key(body.seq or 0)
        return promote(session, which, body.name, text)

    return await edit(service, entry, change, body)


@router.post(PATH + "/rename", **editing(forms.RenameBody))
async def rename_name(service: Shared, entry: AdminEntry, request: Request) -> Any:
    """Call a known name otherwise; what was learned of it stays."""
    body = await service.read_json(request, forms.RenameBody, entry.config.owner)
    return await edit(service, entry, lambda session: rename(session, body.name, body.new), body)


@router.post(PATH + "/retire", **editing(forms.RetireBody))
async def retire_name(service: Shared, entry: AdminEntry, request: Request) -> Any:
    """Move a known name to the negatives: samples of it are unknown from now on."""
    body = await service.read_json(request, forms.RetireBody, entry.config.owner)
    return await edit(service, entry, lambda session: retire(session, body.name), body)


@router.post(PATH + "/dismiss", **editing(forms.DismissBody))
async def dismiss_group(service: Shared, entry: AdminEntry, request: Request) -> Any:
    """Show a group never again; its samples stay unknown."""
    body = await service.read_json(request, forms.DismissBody, entry.config.owner)
    return await edit(service, entry, lambda session: dismiss(session, body.group), body)


@router.post(PATH + "/correct", **editing(forms.CorrectBody))
async def correct_samples(service: Shared, entry: AdminEntry, request: Request) -> Any:
    """Keep what a person says that kept samples show, apart from their verdicts; nothing is learned from it."""
    body = await service.read_json(request, forms.CorrectBody, entry.config.owner)
    try:
        names = {int(seq): name for seq, name in body.names.items()}
    except ValueError as error:
        raise ServiceError(422, f"expected sequence numbers, got {error}; send names by number") from error
    return await edit(service, entry, partial(corrected, entry.opened, names), body)


@router.post(PATH + "/undo", **editing(forms.EditBody))
async def undo(service: Shared, entry: AdminEntry, request: Request) -> Any:
    """Take back the last edit: exactly where nothing was observed since, else by its names."""
    body = await service.read_json(request, forms.EditBody, entry.config.owner)
    work = partial(undo_edit, entry.opened, service.limits, after=body.after)
    return await service.run_chore(entry.config.owner, work)


@router.get(PATH + "/review", response_model=forms.ReviewList)
async def review(service: Shared, entry: ReadEntry, format: Literal["json", "csv", "coco", "fiftyone"] = "json") -> Any:
    """The kept samples with their labels: the word of a person, or else the verdict."""
    found = await service.run_chore(entry.config.owner, partial(reviewed_samples, entry.opened))
    rows = [(seq, row._replace(key=entry.keys.get(seq) or str(seq))) for seq, row in found]
    if format == "csv":
        return Response(as_csv(rows), media_type="text/csv")
    if format in ("coco", "fiftyone"):
        maker = coco if format == "coco" else fiftyone
        return json_response(dump_json(maker([row for _, row in rows])))
    return json_response(dump_json({"samples": [shown(seq, row) for seq, row in rows]}))


def as_csv(rows: list[tuple[int, ReviewedImage]]) -> str:
    """Reviewed samples as CSV with a header."""
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(("seq", *ReviewedImage._fields, "label"))
    writer.writerows((seq, *map(as_text_cell, (*row, row.label))) for seq, row in rows)
    return file.getvalue()


def shown(seq: int, row: ReviewedImage) -> dict[str, Any]:
    """A reviewed sample as JSON shows it."""
    return {"seq": seq, **row._asdict(), "label": row.label}


async def edit(service: Service, entry: StreamEntry, change: Change, body: forms.EditBody) -> dict[str, Any]:
    """Change a stream and return the record, if its owner's share of the disk has room for the states it keeps."""
    owner, stream = entry.config.owner, entry.opened

    def work() -> dict[str, Any]:
        service.store.check_disk(owner, 2 * stream.memory)
        return edit_stream(stream, change, service.limits, after=body.after)

    return await service.run_chore(owner, work)


def listed_vector(words: Words, labels: LabelSpace, name: str) -> Float[Tensor, " d"] | None:
    """The text vector of a suggestion or a negative that is called so, None where there is none."""
    suggested = words.of(labels)
    if suggested and name in suggested.words:
        return suggested.vectors[suggested.words.index(name)]
    return negative_vector(labels, name)


async def name_vector(service: Service, entry: StreamEntry, body: forms.PromoteBody) -> Float[Tensor, " d"]:
    """The text vector of a new name: sent with it, of a suggestion or a negative called so, or encoded."""
    labels = entry.opened.labels
    try:
        check_new_name(labels.names, body.name)
    except LabelError as error:
        raise ServiceError(409, str(error), "edit") from error
    if body.vector is not None:
        vector = torch.tensor(body.vector, dtype=torch.float32)
        check_text_vector(vector, labels.dim)
        return vector
    found = await service.run_chore(entry.config.owner, partial(listed_vector, service.words, labels, body.name))
    if found is not None:
        return found
    try:
        return await service.encoder.name_vector(entry.config.owner, labels, body.name)
    except EncoderError as error:
        raise ServiceError(
            422,
            f"expected an encoder for {body.name!r}, which no suggestion is called, got none; send its `vector`",
            "encoder",
        ) from error
