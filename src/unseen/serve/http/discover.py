"""Routes from unknown to known: groups of the unknown samples of a stream, and why a sample got its verdict."""

from functools import partial
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from unseen.serve.http import schema
from unseen.serve.http.routes import ReadEntry, Shared
from unseen.serve.stream.groups import explain_sample, stream_groups

router = APIRouter(responses={"4XX": {"model": schema.Error}, "5XX": {"model": schema.Error}})


class WordInfo(BaseModel):
    """A word and its share of the softmax over all words."""

    word: str
    share: float


class GroupInfo(BaseModel):
    """Unknown samples that belong together, by sequence number."""

    number: int = Field(description="Stays with the group as the stream goes on.")
    size: int
    distinct: int
    tightness: float
    first: int
    last: int
    growing: bool
    nearest: str
    looks_known: bool
    exemplars: list[int]
    keys: list[int] = Field(description="Sequence numbers of all samples, the most central first.")
    suggestions: list[WordInfo]


class GroupList(BaseModel):
    """Groups, the largest first."""

    groups: list[GroupInfo]


class SimilarSample(BaseModel):
    """An earlier sample."""

    seq: int
    known: bool
    nearest: str
    cosine: float


class ExplanationInfo(BaseModel):
    """Why a sample gets its verdict."""

    seq: int
    key: str | None
    verdict: str
    name: str | None
    nearest: str
    margin: float
    threshold: float
    confidence: float
    warming: bool
    names: list[WordInfo]
    negatives: list[WordInfo]
    known_share: float
    text_margin: float
    learned_margin: float
    similar: list[SimilarSample]
    why: str


@router.get("/v1/streams/{id}/groups", response_model=GroupList)
async def groups(service: Shared, entry: ReadEntry) -> Any:
    """Group the unknown samples that the stream has kept; names are suggested from its negatives."""
    return {"groups": await service.run_chore(entry.config.owner, partial(stream_groups, entry.opened))}


@router.get("/v1/streams/{id}/explain/{seq}", response_model=ExplanationInfo)
async def explain(service: Shared, entry: ReadEntry, seq: int) -> Any:
    """Say why a kept sample gets its verdict: nearest names, what speaks against it, similar earlier samples."""
    return await service.run_chore(entry.config.owner, partial(explain_sample, entry.opened, seq))
