"""Routes from unknown to known: why, groups, edits of the names, and what people say of single samples."""

from functools import partial
from typing import Annotated, Any

import torch
from fastapi import APIRouter, Body
from jaxtyping import Float
from starlette.responses import Response
from torch import Tensor

from unseen.discover import Edited, dismiss, promote, rename, retire
from unseen.discover.edit import check_text_vector
from unseen.errors import EncoderError, LabelError, ServiceError
from unseen.labels.edits import check_new_name, negative_vector
from unseen.serve.http import answers, schema
from unseen.serve.http.routes import BEARER, ERRORS, AdminEntry, ReadEntry, Shared, json_response
from unseen.serve.http.service import Service
from unseen.serve.stream import kept
from unseen.serve.stream.batch import dump_json
from unseen.serve.stream.store import StreamEntry
from unseen.session import Session

router = APIRouter(responses=ERRORS, dependencies=BEARER)
PATH = "/v1/streams/{id}"


@router.get(PATH + "/groups", response_model=answers.GroupList)
async def groups(service: Shared, entry: ReadEntry) -> Any:
    """Group the unknown samples that the stream has kept, with suggested names."""
    found = await service.run_chore(entry.config.owner, partial(kept.stream_groups, entry.opened))
    for one in found["groups"]:
        one["pictured"] = [seq for seq in one["keys"] if entry.thumbnail(seq)][:9]
    return found


@router.get(PATH + "/explain/{seq}", response_model=answers.ExplanationInfo, response_model_exclude_unset=True)
async def explain(service: Shared, entry: ReadEntry, seq: int) -> Any:
    """Say why a kept sample gets its verdict: nearest names, what speaks against it, similar earlier samples."""
    shown = await service.run_chore(entry.config.owner, partial(kept.explain_sample, entry.opened, seq))
    seqs = [seq, *(one["seq"] for one in shown["similar"])]
    return shown | {"key": entry.keys.get(seq), "pictured": [one for one in seqs if entry.thumbnail(one)]}


@router.post(PATH + "/edits", response_model=answers.EditInfo)
async def edit(
    service: Shared, entry: AdminEntry, body: Annotated[schema.AnyEdit, Body(discriminator="verb")]
) -> dict[str, Any]:
    """Change the names of a running stream, or what people say of its samples, and return the record of it.

    `promote` makes a known name of a group or of one kept sample, `rename` calls a name otherwise, `retire` moves it to
    the negatives, `dismiss` shows a group never again, `correct` keeps what a person says that samples show, `undo`
    takes back the last edit. The stream goes on with what it has learned.
    """
    change = await wanted_change(service, entry, body)

    work = partial(kept.edit_stream, entry.opened, change, service.limits, after=body.after)
    return await service.run_chore(entry.config.owner, work)


async def wanted_change(service: Service, entry: StreamEntry, body: schema.AnyEdit) -> kept.Change:
    """What an edit does to a session."""
    stream = entry.opened
    match body:
        case schema.Promote(name=name, group=number, seq=seq):
            if (number is None) == (seq is None):
                raise ServiceError(422, "expected either a group or a seq, got both or neither; send one of them")
            text = await name_vector(service, entry, body)

            def promoted(session: Session) -> Edited:
                which: int | str = number or kept.KeptSamples.of(session, stream.at).key(seq or 0)
                return promote(session, which, name, text)

            return promoted
        case schema.Rename(name=name, new=new):
            return lambda session: rename(session, name, new)
        case schema.Retire(name=name):
            return lambda session: retire(session, name)
        case schema.Dismiss(group=number):
            return lambda session: dismiss(session, number)
        case schema.Correct(names=names):
            return partial(kept.corrected, stream, {int(seq): name for seq, name in names.items()})
        case _:
            return partial(kept.undone, stream)


@router.get(PATH + "/review", response_model=answers.ReviewList)
async def review(service: Shared, entry: ReadEntry) -> Response:
    """The kept samples with their labels, the word of a person or else the verdict, and what people changed."""
    found = await service.run_chore(entry.config.owner, partial(kept.reviewed_samples, entry.opened))
    rows = [(seq, row._replace(key=entry.keys.get(seq) or str(seq))) for seq, row in found]
    samples = [{"seq": seq, **row._asdict(), "label": row.label} for seq, row in rows]
    return json_response(dump_json({"samples": samples, "edits": entry.opened.readers.reservoir.journal}))


async def name_vector(service: Service, entry: StreamEntry, body: schema.Promote) -> Float[Tensor, " d"]:
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
    suggested = kept.vocabulary(labels)
    if suggested and body.name in suggested.words:
        return suggested.vectors[suggested.words.index(body.name)]
    if (found := negative_vector(labels, body.name)) is not None:
        return found
    try:
        return await service.encoder.name_vector(labels, body.name)
    except EncoderError as error:
        what = f"expected an encoder for {body.name!r}, which no suggestion is called, got none; send its `vector`"
        raise ServiceError(422, what, "encoder") from error
