"""BenchMARL's hyperparameters (tools/reference_benchmarl.py) as words of our command line, and where none fits.

PPO's are those of issue 5's figures. The off-policy ones are a smaller budget than BenchMARL's own (1000 gradient steps
of [256,256] networks in a batch), chosen before either side had been trained with it, and not tuned for either.
"""

from __future__ import annotations

TASKS = ("balance", "navigation", "sampling", "transport")


def networks(width: int, *parts: str) -> tuple[str, ...]:
    """Two layers of ``width``, tanh, for each of ``parts``."""
    return tuple(
        word for part in parts for word in (f"algo.{part}.widths=[{width},{width}]", f"algo.{part}.activation=tanh")
    )


# 600 x 100 steps, 10 epochs of minibatches of 4000 (BenchMARL: 4096, which does not divide a rollout).
PPO_SIZES = (
    "algo.num_envs=600",
    "algo.rollout_length=100",
    "algo.epochs=10",
    "algo.minibatches=15",
    "algo.normalise_advantages=false",
    *networks(256, "actor", "critic"),
)
PPO_HYPERS = (
    "hypers.lr=3e-4",
    "hypers.lr_end=1",
    "hypers.gamma=0.9",
    "hypers.gae_lambda=0.9",
    "hypers.clip_eps=0.2",
    "hypers.ent_coef=0",
    "hypers.vf_coef=2",  # our value loss is half the square
    "hypers.max_grad_norm=5",
)
PPO_FRAMES = 9e5
# 60 x 100 steps, then 200 gradient steps.
OFF_POLICY = (
    "algo.num_envs=60",
    "algo.rollout_length=100",
    "algo.gradient_steps=200",
    "algo.batch_size=256",
    "algo.buffer_size=100000",
    "algo.learning_starts=0",
    "algo.agent_id=false",
    "hypers.lr=1e-3",
    "hypers.lr_end=1",
    "hypers.gamma=0.9",
    "hypers.tau=0.01",
    "hypers.max_grad_norm=5",
)
QMIX = (
    *OFF_POLICY,
    "algo.chunk_length=1",  # transitions
    "algo.double=false",
    "algo.target_interval=1",
    "algo.mixer_width=32",
    "algo.q.network=mlp",
    *networks(64, "q"),
    "hypers.td_lambda=0",
    "hypers.eps_start=0.8",
    "hypers.eps_end=0.01",
    "hypers.eps_fraction=0.3333",
)
MASAC = (
    *OFF_POLICY,
    *networks(64, "actor", "q"),
    "hypers.critic_lr=1e-3",
    "hypers.alpha_lr=1e-3",
    "hypers.alpha=1",
    "hypers.target_entropy=1",
)
OFF_POLICY_FRAMES = 3e5
# A chunk is one of BenchMARL's batches; few episodes are played greedily, because those of training are compared.
CHUNKS = {"ppo": ("chunks=15",), "off_policy": ("chunks=50", "checkpoint.every=25", "evaluation.episodes=8")}
PPO = (*CHUNKS["ppo"], *PPO_SIZES, *PPO_HYPERS)
WORDS = {
    "mappo": PPO,
    "ippo": PPO,
    "masac": (*CHUNKS["off_policy"], *MASAC),
    "qmix": (*CHUNKS["off_policy"], *QMIX),
}
FRAMES = {"mappo": PPO_FRAMES, "ippo": PPO_FRAMES, "masac": OFF_POLICY_FRAMES, "qmix": OFF_POLICY_FRAMES}
DIFFERENCES = (
    "What differs all the same: BenchMARL takes the time limit for a termination, ours bootstraps there; its layers "
    "start as torch's, ours orthogonal; its minibatches of PPO have 4096 steps, ours 4000. QMIX: its hypernetworks are "
    "linear, ours have a hidden layer; it clips the gradients of agents and mixer together, ours each. MASAC: its "
    "critic says one value for all agents, ours one for each; its policies also learn from what their actions do to "
    "the values of the others, ours only from their own; the standard deviation is a biased softplus there, an "
    "exponential here. The others' actions in a policy's loss were the present policies' when these rows of MASAC were "
    "recorded, as in BenchMARL; that option is gone, and today they are those of replay."
)
FINDINGS = (
    "QMIX: the mixer reads the state as it is, as BenchMARL's does. With a normalised state, the default until it was "
    "removed, it was below BenchMARL's everywhere: 39.7 on balance (six seeds), 0.94 on navigation and 28.3 on "
    "sampling (two seeds each). The rows of VMAS above were trained with it. MASAC: on "
    "balance BenchMARL's rises sooner. In its loss each policy learns from as many times the value's slope as there "
    "are agents, while the temperature starts and falls by the same rule as here, so that randomness is given up "
    "earlier; this was read and not tried."
)
