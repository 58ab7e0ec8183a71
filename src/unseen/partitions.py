"""Verdicts as Parquet files in folders by stream and day (`stream=gate 1/day=2026-11-18/`), as SQL engines read them.

A file is named by the keys in it and appears whole: who judges the same samples again replaces their rows, and rows of
other samples come beside them.
"""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import quote

import torch

from unseen.errors import DataError, import_extra
from unseen.storage.files import replacing
from unseen.storage.remote import Location, local_draft
from unseen.verdicts import Verdicts


def write_partitions(
    folder: Location, verdicts: Verdicts, keys: Sequence[str], streams: Sequence[str], days: Sequence[str]
) -> int:
    """Write one file for each stream and day, and return how many there are."""
    parquet, parts = import_extra("pyarrow.parquet", "tables"), dict[tuple[str, str], list[int]]()
    for row, part in enumerate(zip(streams, days, strict=True)):
        parts.setdefault(part, []).append(row)
    for (stream, day), rows in parts.items():
        own = [keys[row] for row in rows]
        table = verdicts.select(torch.tensor(rows)).to_arrow(own)
        name = hashlib.sha256("\0".join(own).encode()).hexdigest()[:16]
        place = folder / f"stream={quote(stream, safe=' ')}" / f"day={day}" / f"{name}.parquet"
        with local_draft(place) as draft, replacing(draft) as temporary:
            parquet.write_table(table, temporary)
    return len(parts)


def day_of(time: str) -> str:
    """The day of a time, in ISO format or in seconds since 1970, in UTC where the time says no zone.

    >>> day_of("2026-11-18 09:30:00"), day_of("2026-11-18T23:30:00-05:00"), day_of("1700000000")
    ('2026-11-18', '2026-11-19', '2023-11-14')
    """
    try:
        moment = datetime.fromtimestamp(float(time), UTC) if _is_number(time) else datetime.fromisoformat(time)
    except (ValueError, OverflowError, OSError) as error:
        raise DataError(
            f"expected times such as 2026-11-18T09:30:00 or seconds since 1970, got {time!r}; name another column"
        ) from error
    return (moment.astimezone(UTC) if moment.tzinfo else moment).date().isoformat()


def today() -> str:
    """The day of now, in UTC."""
    return datetime.now(UTC).date().isoformat()


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()
