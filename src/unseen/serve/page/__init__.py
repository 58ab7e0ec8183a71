"""The page: static files, served as they are."""

from pathlib import Path

from fastapi import APIRouter
from starlette.responses import FileResponse

FOLDER = Path(__file__).parent
FILES = {"/": "index.html", "/docs": "docs.html"}
FILES |= {f"/{path.name}": path.name for path in sorted(FOLDER.iterdir()) if path.suffix in (".js", ".css", ".svg")}

router = APIRouter(include_in_schema=False)
for path, name in FILES.items():
    router.add_api_route(path, lambda name=name: FileResponse(FOLDER / name), methods=["GET"])
