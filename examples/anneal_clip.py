"""Callbacks: a schedule that no setting knows, and an early end.

The recipes anneal ``lr`` and ``ent_coef`` linearly; PPO's clip range stays. ``CosineClip`` shrinks it along a half
cosine. ``clip_eps`` is traced, an argument of the compiled program, so that changing it compiles nothing:

    python examples/anneal_clip.py                                                        # IPPO with CosineClip
    python -m shoal mappo callbacks=[examples/anneal_clip.py:CosineClip]              # any file with a clip_eps
    python -m shoal mappo callbacks=[examples/anneal_clip.py:stop_when_it_stands_still]

``metrics.csv`` then has ``hypers/clip_eps`` (and all others) as each chunk used it.
"""

from __future__ import annotations

import math

import numpy as np

import shoal
from shoal.baselines.ippo.ippo_ff_mpe import IPPO
from shoal.run.callbacks import Callback, Changes, Context


class CosineClip(Callback):
    """``clip_eps`` from its first value, each run's own, down to ``share`` of it along a half cosine."""

    def __init__(self, share: float = 0.1):
        self.share = share

    def on_chunk(self, context: Context) -> Changes:
        first = context.memory.setdefault("first", context.hypers["clip_eps"].tolist())  # kept through a resume
        scale = self.share + (1 - self.share) * 0.5 * (1 + math.cos(math.pi * context.progress))
        return {"clip_eps": np.array(first) * scale}


def stop_when_it_stands_still(context: Context) -> None:
    """A function is an ``on_chunk``: end when five evaluations in a row have brought no better mean return."""
    score = float(context.metrics["evaluation/episode_return"].mean())
    if score > context.memory.get("best", -math.inf):
        context.memory.update(best=score, chunk=context.chunk)
    elif context.chunk - context.memory.get("chunk", 0) >= 5:
        context.stop()


if __name__ == "__main__":
    shoal.main(IPPO, callbacks=[CosineClip()])
