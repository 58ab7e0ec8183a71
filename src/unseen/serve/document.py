"""What OpenAPI says of bodies that the routes read themselves."""

from __future__ import annotations

from typing import Any

KEY_HEADER = {
    "parameters": [
        {"name": "Idempotency-Key", "in": "header", "required": False, "schema": {"type": "string", "maxLength": 256}}
    ]
}


def body(kinds: dict[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI description of a request body: a model, raw bytes (None), or a form of files (1) and texts."""
    content: dict[str, Any] = {}
    for media, shape in kinds.items():
        if shape is None:
            schema: dict[str, Any] = {"type": "string", "format": "binary"}
        elif isinstance(shape, dict):
            fields = {
                name: {"type": "string", **({"format": "binary"} if file else {})} for name, file in shape.items()
            }
            schema = {"type": "object", "properties": fields}
        else:
            schema = inlined(shape.model_json_schema())
        content[media] = {"schema": schema}
    return {"requestBody": {"required": True, "content": content}}


def inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose references are written out, so that it stands alone in the document."""
    parts = schema.pop("$defs", {})

    def resolve(node: Any) -> Any:
        if isinstance(node, dict):
            if "$ref" in node:
                return resolve(parts[node["$ref"].rsplit("/", 1)[1]])
            return {name: resolve(value) for name, value in node.items()}
        return [resolve(item) for item in node] if isinstance(node, list) else node

    return dict(resolve(schema))
