"""Environments behind one protocol (see ``envs.base``)."""

from envs import jaxmarl as _jaxmarl
from envs import matrix as _matrix
from envs import mpe as _mpe
from envs import pettingzoo as _pettingzoo
from envs import smax as _smax
from envs import vmas as _vmas
from envs.base import Continuous, Discrete, Env, TimeStep, UserError
from envs.registry import canonical, make, register
from envs.registry import list_envs as list

__all__ = ["Continuous", "Discrete", "Env", "TimeStep", "UserError", "canonical", "list", "make", "register"]

_jaxmarl.register_all()
_matrix.register_all()
_mpe.register_all()
_pettingzoo.register_all()
_smax.register_all()
_vmas.register_all()
