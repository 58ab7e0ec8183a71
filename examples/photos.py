"""A folder of photos and some names in, a verdict for each photo out; what was learned is kept for the next run.

python examples/photos.py photos/ "golden retriever" espresso
"""

import sys
from pathlib import Path

import unseen


def main(folder: str, *names: str, encoder: str | Path = "offline", everyday: int = 1_500) -> None:
    """Judge every photo of a folder and save the session."""
    model = unseen.load_encoder(encoder)
    space_file, state_file = Path("space.safetensors"), Path("state.safetensors")
    if state_file.exists():
        space = unseen.LabelSpace.load(space_file)
        session = unseen.Session.load(state_file, space, encoder=model)
    else:
        space = unseen.LabelSpace.build(names, model, everyday=everyday)
        space.save(space_file)
        session = unseen.Session(space, encoder=model)

    for batch in unseen.read_images(folder, size=32):
        for image, verdict in zip(batch, session.observe(batch), strict=True):
            print(f"{image.path}: {verdict.name or 'unknown'} ({verdict.verdict}, known with {verdict.p_known:.0%})")
        for skipped in batch.skipped:
            print(f"{skipped.path}: skipped, {skipped.reason}")
    session.save(state_file)
    print(session)


if __name__ == "__main__":
    main(*sys.argv[1:])
