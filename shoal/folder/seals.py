"""What checkpoints vouch for in the records, checked without resuming. Nothing here needs JAX."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.folder import reading
from shoal.folder.layout import EVALUATIONS, LINEAGE, METRICS
from shoal.folder.tables import ENDING

CHANGED = "is not what the checkpoint has seen: lines are missing, or were changed"
BATCH = re.compile(r'\{"batch": (\d{1,9}),')  # begins an evaluation


def changed(folder: Path, config: Mapping[str, Any]) -> list[str]:
    """The records of a training that are not what its newest checkpoints have seen, by name."""
    seals = _seals(folder)
    size = config.get("runs_per_batch")
    size = size if isinstance(size, int) and size > 0 else reading.MOST_RUNS
    found = []
    for name in (METRICS, LINEAGE, EVALUATIONS):
        expected = {batch: seal[name] for batch, seal in seals.items() if name in seal}
        counts, digests = ({batch: seal[part] for batch, seal in expected.items()} for part in (0, 1))
        with suppress(ValueError):  # it cannot be read, which is for its readers to say
            if _digests(folder / name, counts, size) != digests:
                found.append(name)
    return found


def _seals(folder: Path) -> dict[int, dict[str, list[Any]]]:
    """By batch, ``{file: [lines, SHA-256]}`` of its newest checkpoint; none of what cannot be read."""
    seals: dict[int, dict[str, list[Any]]] = {}
    for place in sorted((folder / "checkpoints").glob("batch_*")):
        numbers = [int(path.name) for path in place.iterdir() if re.fullmatch(r"\d{1,9}", path.name)]
        batch = place.name.removeprefix("batch_")
        if not numbers or not re.fullmatch(r"\d{1,9}", batch):
            continue
        try:
            records = reading.json_file(place / str(max(numbers)) / "manifest.json")["records"]
            if all(list(map(type, seal)) == [int, str] for seal in records.values()):
                seals[int(batch)] = records
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return seals


def _digests(path: Path, counts: Mapping[int, int], size: int) -> dict[int, str]:
    """The SHA-256 of the first ``counts[batch]`` lines of each batch in a record; ``size`` runs are a batch."""
    digests, left = {batch: hashlib.sha256() for batch in counts}, dict(counts)
    text = reading.text(path, reading.RECORDS) if os.path.exists(path) else ""
    for line in text.split(ENDING)[:-1]:
        begun = BATCH.match(line)
        first = line.partition(",")[0]
        batch = int(begun[1]) if begun else int(first) // size if re.fullmatch(r"\d{1,9}", first) else -1
        if left.get(batch, 0) > 0:
            left[batch] -= 1
            digests[batch].update(f"{line}{ENDING}".encode())
    return {batch: digest.hexdigest() for batch, digest in digests.items()}
