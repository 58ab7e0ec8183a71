"""What goes in as JSON: the models that requests are checked against and that OpenAPI shows."""

from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from unseen import detectors
from unseen.labels.negatives import NegativeCounts
from unseen.serve.settings import INSIDE

Setting = Annotated[int, Field(ge=-100_000, le=100_000)] | Annotated[FiniteFloat, Field(ge=-100_000, le=100_000)]
Name = Annotated[str, Field(min_length=1, max_length=256)]
Group = Annotated[int, Field(ge=1, lt=1 << 31)]

IDEMPOTENCY_KEY = {  # a header, which makes a retry harmless
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 256},
}


class RequestBody(BaseModel):
    """A request body; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Samples(msgspec.Struct, forbid_unknown_fields=True):
    """Unit feature vectors, as numbers or as base64 of little-endian float32 rows, or images as base64.

    `keys` is what the samples are called. It is read by msgspec, because there may be many megabytes of it.
    """

    features: list[list[float]] | str | None = None
    images: list[str] | None = None
    keys: list[Annotated[str, msgspec.Meta(max_length=INSIDE.key)]] | None = None


class ThresholdBody(RequestBody):
    """How the threshold between known and unknown is set."""

    kind: str = Field("adaptive", max_length=64)
    settings: dict[str, Setting] = Field(default_factory=dict)


class StreamBody(RequestBody):
    """A stream to create: from names, from a label space the operator offers, or with one uploaded beside this."""

    names: Annotated[list[Name], Field(fail_fast=True)] | None = None
    relatives: int = Field(
        NegativeCounts.relatives, ge=0, le=100_000, description="Words that stand beside the names in WordNet."
    )
    everyday: int = Field(NegativeCounts.everyday, ge=0, le=100_000, description="Words for everyday things.")
    far: int = Field(NegativeCounts.far, ge=0, le=100_000, description="Words that are least like the names.")
    never: list[Name] = Field([], max_length=10_000, description="Words of one's own that are none of the names.")
    space: str | None = Field(None, max_length=128)
    name: str = Field("", max_length=128)
    detector: str = Field(detectors.DEFAULT, max_length=64)
    settings: dict[str, Setting | bool | Annotated[str, Field(max_length=64)]] = Field(default_factory=dict)
    threshold: ThresholdBody = Field(default_factory=lambda: ThresholdBody(kind="adaptive"))

    @property
    def negatives(self) -> dict[str, Any]:
        """What `LabelSpace.build` is to take for negatives."""
        return self.model_dump(include={"relatives", "everyday", "far", "never"})


class RestoreBody(RequestBody):
    """A snapshot to go back to; 0 is the beginning."""

    snapshot: int = Field(ge=0, le=2**62)


class AlarmBody(RequestBody):
    """An alarm to start again: with an allowed rate, or with one that is learned anew."""

    allowed: float | None = Field(None, gt=0, lt=1)


class Edit(RequestBody):
    """An edit; `after` is the number of the last edit that the caller knows of, and another one is refused, 409."""

    after: int | None = Field(None, ge=0, description="`edit` of the groups that the caller has seen.")


class Promote(Edit):
    """A group, or one kept sample, becomes a known name."""

    verb: Literal["promote"]
    name: Name
    group: Group | None = Field(None, description="Number of a group.")
    seq: int | None = Field(None, ge=0, description="Number of one kept sample, instead of a group.")
    vector: Annotated[list[FiniteFloat], Field(max_length=100_000)] | None = Field(
        None, description="Text vector of the name, where the service has no encoder and no negative is called so."
    )


class Rename(Edit):
    """A known name is called otherwise."""

    verb: Literal["rename"]
    name: Name
    new: Name


class Retire(Edit):
    """A known name becomes a negative."""

    verb: Literal["retire"]
    name: Name


class Dismiss(Edit):
    """A group is not shown again."""

    verb: Literal["dismiss"]
    group: Group


class Correct(Edit):
    """What a person says that kept samples show, by their numbers."""

    verb: Literal["correct"]
    names: dict[Annotated[str, Field(pattern="^[0-9]{1,18}$")], Annotated[str, Field(max_length=256)]] = Field(
        min_length=1, description='By sequence number: a name, or "unknown" for none of the names.'
    )


class Undo(Edit):
    """The last edit is taken back: exactly where nothing was observed since, else by its names."""

    verb: Literal["undo"]


AnyEdit = Promote | Rename | Retire | Dismiss | Correct | Undo


def request_body(
    model: type[RequestBody | Samples], *, raw: dict[str, str] | None = None, form: dict[str, bool] | None = None
) -> dict[str, Any]:
    """The OpenAPI description of a body of several media types, which a route dispatches on itself.

    A JSON model, raw bytes described by media type, or a form whose fields are files (True) or texts.
    """
    schema = model.model_json_schema() if issubclass(model, BaseModel) else msgspec.json.schema(model)
    content: dict[str, Any] = {"application/json": {"schema": inlined(schema)}}
    for media, meaning in (raw or {}).items():
        content[media] = {"schema": {"type": "string", "format": "binary", "description": meaning}}
    if form:
        kinds = {True: {"type": "string", "format": "binary"}, False: {"type": "string"}}
        fields = {name: kinds[is_file] for name, is_file in form.items()}
        content["multipart/form-data"] = {"schema": {"type": "object", "properties": fields}}
    return {"requestBody": {"required": True, "content": content}}


def inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema whose references are written out, so that it stands alone in the document."""
    parts = schema.pop("$defs", {})

    def resolve(node: Any) -> Any:
        if isinstance(node, dict):
            if "$ref" in node:
                return resolve(parts[node["$ref"].rsplit("/", 1)[1]])
            return {name: resolve(value) for name, value in node.items()}
        return [resolve(item) for item in node] if isinstance(node, list) else node

    return dict(resolve(schema))
